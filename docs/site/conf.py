"""The documentation site: the repository's own pages as they stand, the API from docstrings, diagrams in the catalogue.

`make site` builds it into build/site. Pages are Markdown that GitHub shows too; nothing is written for the site alone but the
list of pages and the API's page, which holds no name of its own.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import anyformer
from anyformer.descriptions import as_svg, diagram
from anyformer.families import PRESETS

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "pictures"

project, author, release = "anyformer", "The anyformer authors", anyformer.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "studies/**/*.md",
    "docs/*.md",
    "docs/site/api.md",
    "examples/notebooks/*.ipynb",
]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # notebooks are read as what they say and what they gave
html_theme = "furo"
html_title = f"anyformer {release}"
html_copy_source = False
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # of code that leaves out lines, as …
default_role = "code"  # a docstring's `name` is a name
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 100

CONTENTS = {
    "Begin": ("docs/tutorial", "docs/reading"),
    "Notebooks": tuple(
        f"examples/notebooks/{name}" for name in ("from_nothing", "a_papers_change", "a_released_checkpoint")
    ),
    "By job": (
        *("docs/show", "docs/diff", "docs/variants", "docs/cost", "docs/plan", "docs/check", "docs/profile"),
        *("docs/compare", "docs/studies", "docs/claims", "docs/train", "docs/cluster", "docs/generate", "docs/serving"),
        *(
            "docs/translation",
            "docs/instructions",
            "docs/rewards",
            "docs/classification",
            "docs/embeddings",
            "docs/convert",
        ),
        *("docs/integrations", "docs/evaluate", "docs/inspect", "docs/tokenizers-and-text"),
    ),
    "Reference": (
        *("docs/site/api", "docs/spec-language", "docs/catalogue", "docs/history", "docs/parity", "docs/memory"),
        *("docs/json", "docs/reliability", "docs/performance"),
    ),
    "The project": ("docs/architecture", "CONTRIBUTING", "CHANGELOG", "benchmarks/README"),
}


def contents() -> str:
    """What a reader finds beside every page."""
    trees = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *(f"/{page}" for page in pages), "```"])
        for title, pages in CONTENTS.items()
    )
    return "\n\n".join(trees)


def api() -> str:
    """A directive for each public name of the package, by what it is."""
    lines = ["```{eval-rst}"]
    for name in anyformer.__all__[1:]:
        kind = "class" if isinstance(getattr(anyformer, name), type) else "function"
        lines += [f".. auto{kind}:: anyformer.{name}", *(["   :members:"] if kind == "class" else []), ""]
    return "\n".join([*lines, "```"])


def with_pictures(page: str) -> str:
    """The catalogue with the diagram of the first preset of each family."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    first: dict[str, str] = {}
    for name, preset in PRESETS.items():
        first.setdefault(preset.family, name)
    for family, name in first.items():
        (PICTURES / f"{name}.svg").write_text(as_svg(diagram(PRESETS[name].spec), name), encoding="utf-8")
        heading, picture = f"\n## {family}\n", f"\n![The block diagram of {name}](/build/pictures/{name}.svg)\n"
        page = page.replace(heading, heading + picture)
    return page


def notebook(text: str) -> str:
    """A notebook as a page: its words, its code, and below that what it printed when it was last run."""
    said = []
    for cell in json.loads(text)["cells"]:
        words = "".join(cell["source"])
        said.append(words if cell["cell_type"] == "markdown" else f"````python\n{words}\n````")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            printed = "".join(output.get("text") or data.get("text/plain", "")).rstrip()
            shown = "".join(data.get("text/html", ""))
            said.append(f"````{{raw}} html\n{shown}\n````" if shown else f"````text\n{printed}\n````")
    return "\n\n".join(said)


def without_folders(page: str, folder: Path) -> str:
    """The page with links to folders of the repository as plain words: a site has no listing of them."""

    def said(link: re.Match[str]) -> str:
        target = folder / link[2].partition("#")[0]
        return link[1] if "://" not in link[2] and target.is_dir() else link[0]

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", said, page)


def without_links_in_headings(page: str) -> str:
    """The page with the links of its headings below them: a table of contents links to headings."""
    return re.sub(r"^(#+ .*)\[([^\]]+)\]\(([^)\s]+)\)(.*)$", r"\1\2\4\n\n[\2](\3)", page, flags=re.MULTILINE)


def read(app: object, name: str, source: list[str]) -> None:
    page = notebook(source[0]) if name.startswith("examples/notebooks/") else source[0]
    text = without_links_in_headings(without_folders(page, (ROOT / name).parent))
    if name.startswith("studies/"):  # docs/claims links to it, beside what it says of others
        text = f"---\norphan: true\n---\n\n{text}"
    source[0] = {
        "README": lambda: f"{text}\n\n{contents()}\n",
        "docs/site/api": lambda: f"{text}\n\n{api()}\n",
        "docs/catalogue": lambda: with_pictures(text),
    }.get(name, lambda: text)()


def plain(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are words, not markup: what reStructuredText would take for a mark is kept as it is written."""
    lines[:] = [re.sub(r"([*|\\])", r"\\\1", re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", line)) for line in lines]


def finish(app: Any, error: Exception | None) -> None:
    """The start page under the name that servers look for, too: it lies in the same folder, so its links hold."""
    if error is None:
        shutil.copyfile(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    app.connect("build-finished", finish)
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", plain)
