"""A room that is imported alone knows names and parts as the public face does: whoever imports it need not import others."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALONE = {
    "a name": ("from anyformer.costs import cost; print(cost('gpt2', seq_len=32).parameters.total)", "124439808"),
    "a part in words": (
        "from anyformer.spec import Spec, decode; print(decode('Causal & SlidingWindow(128)', Spec).masks[1].size)",
        "128",
    ),
    "a part in data": (
        "from anyformer.spec import Spec, decode; print(decode({'kind': 'RMSNorm', 'eps': 0.5}, Spec).eps)",
        "0.5",
    ),
    "a notebook": ("from anyformer.families import preset; print(preset('gpt2').spec._repr_html_()[:4])", "<svg"),
}


@pytest.mark.parametrize("what", ALONE)
def test_a_room_alone(what: str) -> None:
    code, said = ALONE[what]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.returncode) == (said, 0), result.stderr


def test_a_part_that_nobody_has() -> None:
    code = "from anyformer.spec import PartSpec, decode; decode({'kind': 'RMSNorn'}, PartSpec)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "'RMSNorn' is no kind of Part (did you mean 'RMSNorm'?)" in result.stderr
