"""Runs examples/notebooks from their first cells to their last, and keeps what they print and show, not what they say meanwhile.

`python tools/notebooks.py`, with the extra `notebooks`; ANYFORMER_MATERIAL names the folder of the released checkpoint.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat  # pyright: ignore[reportMissingImports]
from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parents[1]


def run(path: Path) -> None:
    """Write a notebook anew, with what its cells gave in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text/html" in output.get("data", {}):
                    output.data.pop("text/plain", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["ANYFORMER_EXAMPLES"] = str(ROOT / "examples")
    os.environ.setdefault("ANYFORMER_MATERIAL", str(ROOT.parent / "shared" / "material"))
    for each in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        run(each)
        sys.stdout.write(f"{each.name}\n")
