"""Arguments and words about devices that commands share: which one, and times, bytes and FLOPs as people read them."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

NAMES = (
    *("H100", "H800", "H200", "B200", "A100-40GB", "A100-80GB", "V100", "L4", "RTX4090"),
    *("TPUv4", "TPUv5e", "TPUv5p", "MI300X"),
)
THIS = "this"


class DeviceName(click.ParamType):
    """The name of a device, `this`, or the YAML file of one; it is looked up when the command runs."""

    name = "device"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (THIS, *NAMES) if name.lower().startswith(incomplete.lower())]


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    if value >= 3600:
        return f"{value / 3600:,.3g} h" if value < 72 * 3600 else f"{value / 86400:,.3g} days"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def gigabytes(nbytes: float) -> str:
    """Bytes in decimal units."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if nbytes >= 1000**power:
            return (
                f"{nbytes / 1000**power:,.3g} {unit}"
                if nbytes < 999.5 * 1000**power
                else f"{nbytes / 1000**power:,.0f} {unit}"
            )
    return f"{nbytes:.0f} bytes"


def short(value: float) -> str:
    """A number with a prefix: "3.4 T"; a space ends it where there is none."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "
