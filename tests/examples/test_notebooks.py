"""The notebooks run from their first cell to their last, and show what they print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
MEASURED = re.compile(
    r"\b(train|compare|evaluate|generate|verify)\("
)  # another machine may round otherwise, or take longer


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(each.get("text", "")) for each in cell["outputs"] if each.get("name") == "stdout")


def test_each_is_on_the_site() -> None:
    page = (ROOT / "docs" / "site" / "conf.py").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 3
    assert all(f'"{path.stem}"' in page for path in NOTEBOOKS)


@every_notebook
def test_what_is_kept_is_whole(path: Path) -> None:
    for cell in cells(path):
        compile("".join(cell["source"]), path.name, "exec")
        assert cell["execution_count"], "run the notebook, so that the site shows what it prints"
        assert {output["output_type"] for output in cell["outputs"]} <= {"stream", "execute_result", "display_data"}
        assert not re.search(r"/(root|home|tmp|work)/", json.dumps(cell["outputs"]))


@pytest.mark.slow
@every_notebook
def test_it_runs_and_shows_what_it_prints(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Its own assertions hold; what hangs on no measurement is printed as it stands there."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is of the extra `notebooks`")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is of the extra `notebooks`")
    pytest.importorskip("ipykernel", reason="ipykernel is of the extra `notebooks`")
    if "ANYFORMER_MATERIAL" in path.read_text(encoding="utf-8"):
        monkeypatch.setenv("ANYFORMER_MATERIAL", str(request.getfixturevalue("material")))
    monkeypatch.setenv("ANYFORMER_EXAMPLES", str(ROOT / "examples"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    for kept, ran in zip(cells(path), (cell for cell in notebook.cells if cell.cell_type == "code"), strict=True):
        if not MEASURED.search("".join(kept["source"])):
            assert printed(ran) == printed(kept)
