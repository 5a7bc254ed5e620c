"""A save that fails leaves the former checkpoint good and nothing else; the order of its calls survives a power cut."""

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from anyformer.disk.seal import sealed
from anyformer.errors import RunFailed
from anyformer.training.checkpoint import checkpoints as checkpoint
from anyformer.training.checkpoint.checkpoints import Checkpoints
from tests.training.small import save, saved, trained

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def failing(code: int) -> Callable[..., None]:
    def call(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


class TestFailure:
    """The former checkpoint stays good and nothing of the new one is left."""

    def refused(self, checkpoints: Checkpoints, cause: str) -> None:
        model, optimizer = trained(2)
        with pytest.raises(RunFailed, match=cause) as error:
            save(checkpoints, 2, model, optimizer, {})
        assert error.value.exit_status == 1
        assert str(checkpoints.directory / "step-00000002") in str(error.value)
        assert f"the last good checkpoint is {checkpoints.directory / 'step-00000001'}" in str(error.value)

    def unharmed(self, checkpoints: Checkpoints) -> None:
        assert [path.name for path in checkpoints.directory.iterdir()] == ["step-00000001"]
        path = checkpoints.latest()
        assert path is not None
        sealed(path)

    @pytest.mark.parametrize("call", ["mkdir", "write", "fsync", "rename"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
    def test_of_a_call(self, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
        saved(checkpoints, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(code))
            self.refused(checkpoints, os.strerror(code))
        self.unharmed(checkpoints)

    def test_a_file_that_may_not_grow(self, checkpoints: Checkpoints) -> None:
        """The system itself refuses the bytes, in the middle of a file of tensors."""
        saved(checkpoints, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
            self.refused(checkpoints, "File too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.unharmed(checkpoints)

    def test_an_interruption(self, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
        model, optimizer = saved(checkpoints, 1)

        def interrupted(*arguments: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_file", interrupted)
            with pytest.raises(KeyboardInterrupt):
                save(checkpoints, 2, model, optimizer, {})
        self.unharmed(checkpoints)

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").write_text("mine")
        model, optimizer = trained(0)
        with pytest.raises(RunFailed, match="there is no earlier checkpoint"):
            save(Checkpoints(tmp_path / "checkpoints"), 1, model, optimizer, {})
        assert (tmp_path / "checkpoints").read_text() == "mine"


def test_everything_is_synced_before_it_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut keeps what was synced, in the order of the calls; so each file, then its folder, then the name."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def syncing(descriptor: int) -> None:
        calls.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def renaming(source: Path, target: Path) -> None:
        calls.append(("rename", target.name))
        rename(source, target)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here to tell the name of an open file by")
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "rename", renaming)
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.directory.mkdir()
    save(checkpoints, 1, model, optimizer, {})
    aside = f".tmp-{os.getpid()}-step-00000001"
    assert sorted(calls[:5]) == [("sync", name) for name in FILES]
    assert calls[5:] == [("sync", aside), ("rename", "step-00000001"), ("sync", "checkpoints")]
