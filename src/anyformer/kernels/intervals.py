"""Numbers known only to lie between two bounds: what a mask's own predicate, asked of them, says of whole blocks.

A mask is arithmetic on facts about tokens. Called with the bounds of a block's facts it answers whether the block *may* hold a
visible pair and whether it *must* show all of its pairs. What it does that is not known here raises TypeError or
AttributeError, and whoever asked looks at all pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.bool_]
Numbers = NDArray[np.int64]
FAR = 2**40  # beyond any position


class BlockVisibility(NamedTuple):
    """Of each block, whether some pair may be shown, and whether every pair must be."""

    may: Bits
    must: Bits

    def __and__(self, other: Any) -> BlockVisibility:
        other = _verdict(other)
        return BlockVisibility(self.may & other.may, self.must & other.must)

    def __or__(self, other: Any) -> BlockVisibility:
        other = _verdict(other)
        return BlockVisibility(self.may | other.may, self.must | other.must)

    def __invert__(self) -> BlockVisibility:
        return BlockVisibility(~self.must, ~self.may)

    def __bool__(self) -> bool:
        raise TypeError("a verdict on many blocks is not one truth")

    __rand__, __ror__ = __and__, __or__


def _verdict(value: Any) -> BlockVisibility:
    if isinstance(value, BlockVisibility):
        return value
    if isinstance(value, bool):
        return BlockVisibility(np.array(value), np.array(value))
    raise TypeError(f"not known of blocks: {type(value).__name__}")


class IndexRange:
    """Whole numbers lo, lo + step … up to hi, of each block; a step of 0 is one number."""

    def __init__(self, lo: Numbers, hi: Numbers, step: Numbers) -> None:
        self.lo, self.hi, self.step = lo, hi, step

    @classmethod
    def of(cls, value: Any) -> IndexRange:
        if isinstance(value, IndexRange):
            return value
        if isinstance(value, int | np.integer):
            one = np.array(int(value))
            return cls(one, one, np.array(0))
        raise TypeError(f"not known of blocks: {type(value).__name__}")

    def __getitem__(self, key: Any) -> IndexRange:
        return IndexRange(self.lo[key], self.hi[key], self.step[key])

    def __neg__(self) -> IndexRange:
        return IndexRange(-self.hi, -self.lo, self.step)

    def __add__(self, other: Any) -> IndexRange:
        other = IndexRange.of(other)
        return IndexRange(self.lo + other.lo, self.hi + other.hi, np.gcd(self.step, other.step))

    def __sub__(self, other: Any) -> IndexRange:
        return self + -IndexRange.of(other)

    def __rsub__(self, other: Any) -> IndexRange:
        return -self + other

    def __mul__(self, other: Any) -> IndexRange:
        if not isinstance(other, int):
            raise TypeError("only whole multiples of what is known of blocks")
        ends = self.lo * other, self.hi * other
        return IndexRange(np.minimum(*ends), np.maximum(*ends), self.step * abs(other))

    def __floordiv__(self, other: Any) -> IndexRange:
        size = _size(other)
        return _spread(self.lo // size, self.hi // size)

    def __mod__(self, other: Any) -> IndexRange:
        size = _size(other)
        alike, together = self.step % size == 0, self.lo // size == self.hi // size
        first = self.lo % size
        last = np.where(alike, first, np.where(together, self.hi % size, size - 1))
        return _spread(np.where(alike | together, first, 0), last)

    def __abs__(self) -> IndexRange:
        ends = np.abs(self.lo), np.abs(self.hi)
        around = (self.lo <= 0) & (self.hi >= 0)
        return _spread(np.where(around, 0, np.minimum(*ends)), np.maximum(*ends))

    abs = __abs__

    def __lt__(self, other: Any) -> BlockVisibility:
        other = IndexRange.of(other)
        return BlockVisibility(self.lo < other.hi, self.hi < other.lo)

    def __le__(self, other: Any) -> BlockVisibility:
        other = IndexRange.of(other)
        return BlockVisibility(self.lo <= other.hi, self.hi <= other.lo)

    def __gt__(self, other: Any) -> BlockVisibility:
        return IndexRange.of(other) < self

    def __ge__(self, other: Any) -> BlockVisibility:
        return IndexRange.of(other) <= self

    def __eq__(self, other: Any) -> BlockVisibility:  # type: ignore[override]
        other = IndexRange.of(other)
        may = (self.lo <= other.hi) & (other.lo <= self.hi)
        return BlockVisibility(may, may & (self.lo == self.hi) & (other.lo == other.hi))

    def __ne__(self, other: Any) -> BlockVisibility:  # type: ignore[override]
        return ~(self == other)

    def __bool__(self) -> bool:
        raise TypeError("numbers of many blocks are not one truth")

    __hash__ = None  # type: ignore[assignment]
    __radd__, __rmul__ = __add__, __mul__


def bounds(numbers: Numbers) -> IndexRange:
    """What lies between the least and the greatest along the last axis, which keeps its place with length 1."""
    lo, hi = numbers.min(-1, keepdims=True), numbers.max(-1, keepdims=True)
    return IndexRange(lo, hi, np.gcd.reduce(numbers - lo, axis=-1, keepdims=True))


def _spread(lo: Numbers, hi: Numbers) -> IndexRange:
    return IndexRange(lo, hi, (lo != hi).astype(np.int64))


def _size(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise TypeError("blocks are divided by whole numbers")
    return value
