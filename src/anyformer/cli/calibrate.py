"""`anyformer calibrate`: measure this machine once, so that `--device this` and `--hardware this` know it."""

from __future__ import annotations

import click

from anyformer.cli.terminal import console, tell
from anyformer.screen import say


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
    else:
        console().print(machine.table())
