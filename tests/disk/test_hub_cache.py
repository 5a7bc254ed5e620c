"""Models that Hugging Face's tools brought here, by their names."""

from pathlib import Path

import pytest
from huggingface_hub import constants

import anyformer as af
from anyformer.disk.hub_cache import located
from anyformer.errors import CheckpointError
from tests.cli.running import run

NAME = "some-org/tiny.model_1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with one model, laid out as its tools do: blobs, and a snapshot of links to them."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "hub" / "models--some-org--tiny.model_1"
    snapshot = model / "snapshots" / ("0" * 40)
    af.save(af.build(af.shrink("llama2-7b"), seed=0), tmp_path / "made")
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    for file in (tmp_path / "made").iterdir():
        file.rename(model / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    return snapshot


def test_by_the_name_it_has_there(cache: Path) -> None:
    assert located(NAME) == cache
    assert af.load_spec(NAME) == af.load(NAME)[0].spec == af.shrink("llama2-7b")
    assert af.load_spec(f"{NAME}+norm=LayerNorm") != af.load_spec(NAME)
    shown = run("show", NAME)
    assert shown.exit_code == 0, shown.stderr


def test_what_lies_here_comes_first(cache: Path, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    assert located(NAME) == Path(NAME)


@pytest.mark.parametrize("command", [("show",), ("cost",), ("verify",), ("convert",)])
def test_what_is_not_there_says_how_to_bring_it(cache: Path, command: tuple[str, ...]) -> None:
    out = ("out",) if command == ("convert",) else ()
    missing = run(*command, "some-org/other", *out)
    assert missing.exit_code == 2
    assert "`hf download some-org/other` brings it here" in missing.stderr
    assert missing.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["./a/b", "a/b/c", "../a", "-x/y", "a/" + "b" * 200, "a /b", "a.yaml"])
def test_what_is_no_name_of_the_hub_is_a_path(cache: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"give (a specification's file, or )?a model's directory"):
        located(name)
