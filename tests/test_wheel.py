"""The wheel as a user gets it: built, installed beside its dependencies in an environment of its own, and run from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from anyformer.version import __version__

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def said(*command: str | Path, at: Path) -> str:
    """What a command prints, of whose process the paths of this one say nothing. Fails where its status is not 0."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    done = subprocess.run(list(map(str, command)), cwd=at, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    said(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", place, ROOT, at=place)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment's commands. What the wheel depends on is this environment's, behind its own."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    (home,) = place.glob("lib/python*/site-packages")
    said(
        *(sys.executable, "-m", "pip", "--python", place / "bin" / "python"),
        *("install", "--no-deps", "-q", wheel),
        at=place,
    )
    (home / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("anyformer/")}
    source = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert held == {path.relative_to(ROOT / "src").as_posix() for path in source}


def test_the_installed_package_is_what_runs(installed: Path, tmp_path: Path) -> None:
    where = said(installed / "python", "-c", "import anyformer; print(anyformer.__file__)", at=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert __version__ in said(installed / "anyformer", "--version", at=tmp_path)


def test_a_model_is_trained_converted_and_read(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{n} sheep went up the hill.\n" for n in range(400)))
    sizes = ("--params", "20k", "--vocab", "300", "--tokens", "2048", "--batch-tokens", "256", "--seq-len", "32")
    command = installed / "anyformer"
    trained = said(command, "train", "llama2", "--data", "text.txt", *sizes, "--out", "run", "--json", at=tmp_path)
    assert json.loads(trained)["steps"] == 8
    said(command, "convert", "run", "hf", at=tmp_path)
    assert said(command, "generate", "1 sheep", "--model", "hf", "--max-new-tokens", "4", at=tmp_path).startswith(
        "1 sheep"
    )
