"""Amounts as people write them: 10M, 1.5B, 800k."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


class Amount(click.ParamType):
    """A whole number of `least` or more, with k, M, B or T behind it or not."""

    name = "number"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmbgt]?)", str(value).strip(), re.IGNORECASE)
        number = round(float(re.sub("[_,]", "", match[1])) * _UNITS[match[2].lower()]) if match else -1
        if number < self.least:
            self.fail(f"'{value}' is no number above {self.least - 1}; write it as 3000000, 3M or 1.5B", param, ctx)
        return number


class Nbytes(click.ParamType):
    """A number of bytes above 0: 5GB, 500MB, powers of ten."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?", str(value).strip(), re.IGNORECASE)
        nbytes = round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
        if nbytes < 1:
            self.fail(f"'{value}' is no number of bytes above 0; write it as 5GB or 500MB", param, ctx)
        return nbytes
