"""`anyformer calibrate`: measure this machine once, so that `--device this` and `--hardware this` know it."""

from __future__ import annotations

import click

from anyformer.cli.terminal import console, tell
from anyformer.screen import figures, gigabytes, say, short


@click.command(epilog="Example: anyformer calibrate && anyformer cost gpt2 --device this")
@click.option("--device", "name", help="cpu, cuda …; the best there is by default.")
@click.option("--dtype", multiple=True, help="Of products; by default those that the device multiplies itself.")
@click.option("--anew", is_flag=True, help="Measure again what is known.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all that was measured.")
def command(name: str | None, dtype: tuple[str, ...], anew: bool, as_json: bool) -> None:
    """Measure products by shape, attention, maps, memory and overheads of this machine, in up to a minute, and keep it.

    Measure while nothing else runs. What was measured belongs to this processor, number of threads and version of PyTorch;
    with others it is measured anew.
    """
    from anyformer.measure import here

    machine = here.calibrate(name, dtype, anew=anew, say=lambda what: say(f"measuring {what} …", stderr=True))
    if as_json:
        tell(machine, as_json)
        return
    found, took = machine.device, machine.seconds
    table = figures(found.source)
    for each, peak in found.peak_flops_per_second.items():
        table.add_row(f"products, {each}", f"{short(peak)}FLOP/s", "the best of large squares")
    for each, grid in machine.rates.products.items():
        few, many = (1 / grid.at(m, 1024, 1024) for m in (1, 1024))
        table.add_row(f"1024 × 1024, {each}", f"{short(few)}FLOP/s", f"with one row; {short(many)}FLOP/s with 1,024")
    table.add_row(
        "reading memory", f"{gigabytes(found.nbytes_per_second)}/s", "weights in turn, one row, as decoding does"
    )
    table.add_row("copying memory", f"{gigabytes(machine.rates.copying[-1][1])}/s", "read and written")
    for passes, each in machine.rates.overhead_seconds.items():
        table.add_row(f"overhead, {passes}", f"{each * 1e6:.3g} µs", "an operator, beside its work")
    table.add_row("memory", gigabytes(found.memory_nbytes), "")
    table.add_row("", "", f"measured in {took:.0f} s" if took else "measured before; --anew measures again")
    console().print(table)
