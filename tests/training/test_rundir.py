"""A run's directory says what ran, has one owner, and is of one run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from anyformer import recipe as recipes
from anyformer import spec as specs
from anyformer.disk import atomic
from anyformer.disk.lock import hold, is_held
from anyformer.disk.run_layout import is_run
from anyformer.disk.seal import read_record
from anyformer.errors import CheckpointError, RunFailed, UsageError
from anyformer.recipe import AdamW, Recipe
from anyformer.spec import ModelSpec
from anyformer.training.checkpoint.directory import own
from anyformer.training.checkpoint.provenance import code_fingerprint
from tests.hostile.faulty_disk import no_space_left
from tests.training.killing import recipe, spec
from tests.training.owned import PRINTS, created, held

ROOT = Path(__file__).resolve().parent.parent.parent


def test_it_says_what_ran(tmp_path: Path) -> None:
    with held(tmp_path / "runs" / "a") as run:
        assert specs.read(run / "spec.yaml") == spec()
        assert recipes.read(run / "recipe.yaml") == recipe()
        assert (run / "checkpoints").is_dir()
        record = json.loads((run / "run.json").read_text())
        assert record.pop("crc32")
        assert record == read_record(run)
        assert set(record["files"]) == {"spec.yaml", "recipe.yaml"}
        assert record["fingerprints"] == {**PRINTS, "code": code_fingerprint()}
        assert record["versions"]["python"] == sys.version.split()[0]
        assert {"torch", "anyformer"} <= set(record["versions"])
        assert (record["architecture"], record["seed"]) == ("tiny", 0)
        assert (record["steps"], record["command"]) == (20, sys.argv)
        # 61 rows of 16; twice two norms, q (16·16), k and v (8·16), o (16·16), three matrices of 24·16; the last norm.
        assert record["n_params"] == 61 * 16 + 2 * (32 + 256 + 2 * 128 + 256 + 3 * 24 * 16) + 16
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_the_code_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.training.checkpoint import provenance

    for folder, text in (("one", "x = 1"), ("same", "x = 1"), ("two", "x = 2")):
        (tmp_path / folder / "training" / "checkpoint").mkdir(parents=True)
        (tmp_path / folder / "training" / "a.py").write_text(text)
    prints = []
    for folder in ("one", "same", "two"):
        monkeypatch.setattr(
            provenance, "__file__", str(tmp_path / folder / "training" / "checkpoint" / "provenance.py")
        )
        prints.append(code_fingerprint())
    assert prints[0] == prints[1] != prints[2]


class TestGoingOn:
    def test_the_same_run_is_opened(self, tmp_path: Path) -> None:
        created(tmp_path / "a").release()
        (tmp_path / "a" / "checkpoints" / ".tmp-1-step-00000004").mkdir()
        (tmp_path / "a" / ".tmp-1-run.json").write_text("half")
        before = (tmp_path / "a" / "run.json").read_text()
        with held(tmp_path / "a") as run:
            assert (run / "run.json").read_text() == before
            assert sorted(path.name for path in run.rglob("*")) == [
                "checkpoints",
                "lock",
                "recipe.yaml",
                "run.json",
                "spec.yaml",
            ]

    @pytest.mark.parametrize(
        ("other_spec", "other_recipe", "prints", "says"),
        [
            (
                spec().but(stack=spec().stack.but(d_model=32)),
                recipe(),
                PRINTS,
                "another spec: stack.d_model is 16 there and 32 here",
            ),
            (
                spec().but(stack=spec().stack.but(blocks=spec().stack.blocks[:1])),
                recipe(),
                PRINTS,
                "another spec: stack.blocks is 2 × Block there and 1 × Block here",
            ),
            (
                spec(),
                recipe().but(optimizer=AdamW(lr=0.5)),
                PRINTS,
                f"another recipe: optimizer.lr is {AdamW().lr!r} there and 0.5 here",
            ),
            (spec(), recipe().but(seed=3), PRINTS, "another recipe: seed is 0 there and 3 here"),
            (spec(), recipe(), {**PRINTS, "data": "d2"}, "another data: d1 there and d2 here"),
        ],
    )
    def test_another_run_is_refused(
        self, tmp_path: Path, other_spec: ModelSpec, other_recipe: Recipe, prints: dict[str, str], says: str
    ) -> None:
        created(tmp_path / "a").release()
        with pytest.raises(CheckpointError) as error:
            own(tmp_path / "a", other_spec, other_recipe, prints)
        assert says in str(error.value)
        assert error.value.exit_status == 2
        created(tmp_path / "a").release()  # the lock was released

    @pytest.mark.parametrize(("there", "here"), [("none", "runs/b"), ("runs/b", "none"), ("runs/b", "runs/c")])
    def test_other_weights_to_start_from_are_refused(self, tmp_path: Path, there: str, here: str) -> None:
        begun, given = ({**PRINTS, **({"init": init} if init != "none" else {})} for init in (there, here))
        own(tmp_path / "a", spec(), recipe(), begun).release()
        with pytest.raises(CheckpointError, match=f"a run on another init: {there} there and {here} here; go on with"):
            own(tmp_path / "a", spec(), recipe(), given)
        own(tmp_path / "a", spec(), recipe(), begun).release()

    def test_changed_code_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        created(tmp_path / "a").release()
        created(tmp_path / "a").release()
        assert not caplog.text
        monkeypatch.setattr("anyformer.training.checkpoint.directory.code_fingerprint", lambda: "other")
        created(tmp_path / "a").release()
        assert "the code has changed" in caplog.text

    @pytest.mark.parametrize("name", ["run.json", "spec.yaml", "recipe.yaml"])
    def test_damage_is_named(self, tmp_path: Path, name: str) -> None:
        created(tmp_path / "a").release()
        (tmp_path / "a" / name).write_text("[")
        with pytest.raises(CheckpointError, match=f"{name} is (damaged|truncated or overwritten)"):
            created(tmp_path / "a")

    def test_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="holds no run"):
            read_record(tmp_path)


class TestRefused:
    def test_other_things(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(UsageError, match="such as thesis"):
            created(tmp_path)
        with pytest.raises(UsageError, match="is a file"):
            created(tmp_path / "thesis.tex")
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_an_empty_directory_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        created(tmp_path / "a").release()
        assert is_run(tmp_path / "a")

    def test_a_failure_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", no_space_left)
            with pytest.raises(RunFailed, match="No space left"):
                created(tmp_path / "runs" / "a")
        assert list((tmp_path / "runs").iterdir()) == []

    def test_what_a_killed_process_left_beside_it_goes(self, tmp_path: Path) -> None:
        (tmp_path / ".tmp-1-a").mkdir()
        (tmp_path / ".tmp-1-a" / "lock").touch()
        (tmp_path / ".tmp-1-b").mkdir()
        (tmp_path / ".tmp-2-a").mkdir()
        held = hold(tmp_path / ".tmp-2-a")  # being made at this moment
        assert held is not None
        created(tmp_path / "a").release()
        os.close(held)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-1-b", ".tmp-2-a", "a"]


HOLD = """
import os, sys, time
from pathlib import Path
from anyformer.disk.lock import Lock
lock = Lock(Path(sys.argv[1]) / "lock", Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
time.sleep(30)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds a run's directory, and has a child that will outlive it."""
    created(tmp_path / "a").release()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "a")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    process.stdout.close()
    os.kill(child, signal.SIGKILL)


class TestOneOwner:
    def test_another_process_is_named(self, tmp_path: Path, holder: tuple[subprocess.Popen[str], int]) -> None:
        process, _ = holder
        with pytest.raises(UsageError, match=rf"in use: .* running process {process.pid};") as error:
            created(tmp_path / "a")
        assert error.value.exit_status == 2
        assert is_held(tmp_path / "a" / "lock")
        process.kill()  # and its child lives on
        process.wait()
        assert not is_held(tmp_path / "a" / "lock")
        created(tmp_path / "a").release()

    def test_twice_in_one_process(self, tmp_path: Path) -> None:
        with held(tmp_path / "a"), pytest.raises(UsageError, match=f"process {os.getpid()};"):
            created(tmp_path / "a")
        created(tmp_path / "a").release()

    def test_a_race_to_create_has_one_winner(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rename = os.rename

        def later(source: Path, target: Path) -> None:
            monkeypatch.setattr(os, "rename", rename)
            (tmp_path / "other").mkdir()
            first = created(tmp_path / "other" / "a")
            first.release()
            rename(tmp_path / "other" / "a", tmp_path / "a")
            rename(source, target)

        monkeypatch.setattr(os, "rename", later)
        with pytest.raises(UsageError, match="has just begun a run"):
            created(tmp_path / "a")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "other"]


class TestFiles:
    def test_a_file_is_replaced_whole_or_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.json"
        atomic.replace_file(path, b"one")
        atomic.replace_file(path, b"two")
        assert path.read_bytes() == b"two"

        monkeypatch.setattr(os, "fsync", no_space_left)
        with pytest.raises(OSError, match="No space"):
            atomic.replace_file(path, b"three")
        assert path.read_bytes() == b"two"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_write_that_takes_a_part_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
        atomic.write_file(tmp_path / "a", b"0123456789")
        assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_saved_recipe_is_yaml(tmp_path: Path) -> None:
    created(tmp_path / "a").release()
    assert yaml.safe_load((tmp_path / "a" / "recipe.yaml").read_text())["seq_len"] == 16
