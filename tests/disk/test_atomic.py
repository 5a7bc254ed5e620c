"""Directories are there whole or not at all; what living processes fill is left alone."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.disk.atomic import ASIDE, new_directory, new_file, remove_abandoned, remove_unfinished, replace_file
from anyformer.disk.lock import hold

SRC = Path(__file__).resolve().parents[2] / "src"
FILLING = """
import sys, time
from pathlib import Path
from anyformer.disk.atomic import new_directory
with new_directory(Path(sys.argv[1])) as aside:
    (aside / "half").write_bytes(b"half of it")
    print("filling", flush=True)
    time.sleep(60)
"""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def filling(target: Path) -> subprocess.Popen[str]:
    """Return a process that is in the middle of making a directory."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", FILLING, str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "filling\n"
    return process


def test_it_appears_with_all_that_is_in_it(tmp_path: Path) -> None:
    with new_directory(tmp_path / "new" / "out") as aside:
        assert names(tmp_path / "new") == [aside.name]
        (aside / "inner").mkdir()
        (aside / "inner" / "file").write_text("whole")
        os.chmod(aside / "inner" / "file", 0o600)
    assert names(tmp_path / "new") == ["out"]
    (tmp_path / "plain").write_text("")
    mode = stat.S_IMODE((tmp_path / "new" / "out" / "inner" / "file").stat().st_mode)
    assert mode == stat.S_IMODE((tmp_path / "plain").stat().st_mode)  # as the user's mask has it
    assert (tmp_path / "new" / "out" / "inner" / "file").read_text() == "whole"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def failing() -> None:
        with new_directory(tmp_path / "out") as aside:
            (aside / "half").write_text("half")
            raise error

    with pytest.raises(type(error)):
        failing()
    assert names(tmp_path) == []


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(OSError, match="not empty"), new_directory(tmp_path / "out") as aside:
        (aside / "other").write_text("other")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["mine"]


def test_what_a_killed_process_left_goes_when_the_same_is_made_again(tmp_path: Path) -> None:
    process = filling(tmp_path / "out")
    other = tmp_path / f"{ASIDE}1-my-out"  # of another directory, whose name ends alike
    other.mkdir()
    remove_unfinished(tmp_path / "out")
    assert names(tmp_path) == sorted([other.name, f"{ASIDE}{process.pid}-out"])  # it lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    with new_directory(tmp_path / "out") as aside:
        (aside / "file").write_text("whole")
    assert names(tmp_path) == sorted([other.name, "out"])


def test_a_directory_has_one_holder(tmp_path: Path) -> None:
    first = hold(tmp_path)
    assert first is not None
    assert hold(tmp_path) is None
    os.close(first)
    again = hold(tmp_path)
    assert again is not None
    os.close(again)
    assert hold(tmp_path / "none") is None


def test_a_file_is_there_whole_or_not_at_all_and_what_a_kill_left_goes(tmp_path: Path) -> None:
    target, left = tmp_path / "model.gguf", tmp_path / f"{ASIDE}1-model.gguf"
    left.write_text("half")
    with new_file(target) as aside:
        assert not left.exists()
        aside.write_text("whole")
        remove_unfinished(target)
        assert names(tmp_path) == [aside.name]  # its maker lives
    assert target.read_text() == "whole"

    def failing() -> None:
        with new_file(target) as aside:
            aside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert names(tmp_path) == ["model.gguf"]
    assert target.read_text() == "whole"
    left.write_text("half")
    os.utime(left, (0, 0))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == ["model.gguf"]


def test_a_file_that_cannot_be_replaced_is_called_by_its_own_name(tmp_path: Path) -> None:
    target = tmp_path / "study.json"
    target.mkdir()
    for path in (target, tmp_path / "none" / "study.json"):
        with pytest.raises(OSError, match="directory") as caught:
            replace_file(path, b"{}")
        assert caught.value.filename == str(path)
    assert names(tmp_path) == ["study.json"]
