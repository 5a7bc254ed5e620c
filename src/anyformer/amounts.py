"""Amounts as people read them: things counted, FLOPs, bytes, times.

Three digits say as much as a measurement or an estimate knows. A count keeps its zeros, for it stands beside others in columns
and titles (3.00M); what has a unit drops them (2 GB). 10^9 is a billion of things (6.74B), and giga of a unit.
"""

from __future__ import annotations

from collections.abc import Sequence

_THINGS = ("", "k", "M", "B", "T", "Q")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_BYTES = ("bytes", "kB", "MB", "GB", "TB", "PB")
_BINARY_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 document", "1,200 documents"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def count(value: float) -> str:
    """A number of things, such as parameters or tokens, in short: 820, 3.00M, 6.74B."""
    size, unit = _scaled(value, _THINGS)
    whole = size >= 999.5 or not unit
    return f"{f'{size:,.0f}' if whole else f'{size:#.3g}'.rstrip('.')}{unit}"


def prefixed(value: float, unit: str = "") -> str:
    """An amount of a unit by its SI prefix: "13.3 GFLOP/s"."""
    size, prefix = _scaled(value, _PREFIXES)
    return f"{three_digits(size)} {prefix}{unit}".rstrip()


def gigabytes(nbytes: float) -> str:
    """Bytes in decimal units: "79.2 GB"."""
    size, unit = _scaled(nbytes, _BYTES)
    return f"{three_digits(size)} {unit}"


def gibibytes(nbytes: float) -> str:
    """Bytes in units of powers of 1,024, in which sizes of tensors are often whole: "512 KiB"."""
    size, unit = _scaled(nbytes, _BINARY_BYTES, 1024)
    return f"{three_digits(size)} {unit}"


def seconds(value: float) -> str:
    """A time that was measured or computed: "12.3 ms", "61.9 s", "2.5 h"."""
    if value >= 3600:
        return f"{three_digits(value / 3600)} h" if value < 72 * 3600 else f"{three_digits(value / 86400)} days"
    if value >= 1:
        return f"{three_digits(value)} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def duration(seconds: float) -> str:
    """About how long something takes, which changes while it is watched: "5 min", "2.0 h"."""
    if seconds < 99:
        return f"{seconds:.0f} s"
    if seconds < 99 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.1f} days"


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign, a true minus, and `digits` decimals; a rounded zero has no sign."""
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def three_digits(value: float) -> str:
    """Three digits, or all of a larger number: 0.5, 12.3, 1,500."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _scaled(value: float, units: Sequence[str], step: int = 1000) -> tuple[float, str]:
    """The value in the largest of the units of which it is one or more, in three digits."""
    i = 0
    while value >= (0.9995 * step if step == 1000 else step) and i + 1 < len(units):
        value, i = value / step, i + 1
    return value, units[i]
