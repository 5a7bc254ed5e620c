"""Stop strings: however a text is cut into pieces, it ends before the first stop string that is complete."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import InputError
from anyformer.generation import StopStrings


def ended(text: str, stops: list[str]) -> str:
    """Read character by character; the first moment at which the text ends with a stop string is the end."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - len(max(met, key=len))]
    return text


# Two letters, so that stop strings overlap themselves, each other and the text's end.
letters = st.text(alphabet="ab", max_size=14)


@given(st.lists(letters, max_size=8), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_pieces_give_what_the_whole_gives(pieces: list[str], stops: list[str]) -> None:
    gate = StopStrings(stops)
    shown, text = "", ""
    expected = ended("".join(pieces), stops)
    for piece in pieces:
        text += piece
        shown += gate.push(piece)
        assert expected.startswith(shown), "text was shown that a stop string takes back"
        # All that no stop string can still take back is shown at once.
        waiting = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        assert gate.met is not None or len(shown) == len(text) - max(waiting, default=0)
    assert shown + gate.finish() == expected
    assert (gate.met is None) == (expected == "".join(pieces))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InputError, match="not empty"):
        StopStrings(["\n", ""])
    with pytest.raises(InputError, match="list of strings"):
        StopStrings("ab")


def test_long_stop_strings_hold_nobody_up() -> None:
    """A server looks for them between the requests of others: here each piece once cost a copy of all their beginnings."""
    gate, begun = StopStrings(["x" * 1_000_000, "y" * 100_000] * 8), time.process_time()
    assert "".join(gate.push(piece) for piece in ["ab", "xxx", "y"] * 20) + gate.finish() == "abxxxy" * 20
    assert time.process_time() - begun < 2
