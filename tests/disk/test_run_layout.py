"""How a run lies on disk, said by hand."""

from pathlib import Path

import pytest

from anyformer.disk.run_layout import (
    checkpoint_name,
    checkpoints_in,
    is_complete,
    is_run,
    measure,
    run_of,
    step_and_again,
)


def test_checkpoints_are_in_the_order_of_their_steps_and_of_their_being_saved(tmp_path: Path) -> None:
    """By numbers, not by letters: step 100,000,000 comes after 99,999,999, and .10 after .9."""
    order = ["step-00000002", "step-00000010", "step-00000010.9", "step-00000010.10", "step-99999999", "step-100000000"]
    for name in (*reversed(order), "step-12", "step-00000010.tmp", "step-", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints_in(tmp_path)] == order


@pytest.mark.parametrize(
    ("step", "again", "name"),
    [(0, 0, "step-00000000"), (10, 0, "step-00000010"), (10, 2, "step-00000010.2"), (123456789, 0, "step-123456789")],
)
def test_a_name_says_its_step(step: int, again: int, name: str) -> None:
    assert checkpoint_name(step, again) == name
    assert step_and_again(Path("somewhere") / name) == (step, again)


def test_runs_and_their_checkpoints_are_told_from_other_directories(tmp_path: Path) -> None:
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000010"
    checkpoint.mkdir(parents=True)
    assert run_of(checkpoint) == run
    assert run_of(run) is None
    assert not is_run(run)
    assert not is_complete(checkpoint)
    for file in (run / "spec.yaml", run / "run.json", checkpoint / "manifest.json"):
        file.touch()
    assert is_run(run)
    assert is_complete(checkpoint)


def test_a_measure_is_the_size_and_the_crc_32(tmp_path: Path) -> None:
    """The check value that catalogues of checksums give for CRC-32: that of the digits 1 to 9."""
    (tmp_path / "digits").write_bytes(b"123456789")
    assert measure(tmp_path / "digits") == {"nbytes": 9, "crc32": "cbf43926"}
