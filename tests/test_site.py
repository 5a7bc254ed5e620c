"""The documentation site: it builds without a warning, all that it links to is there, and it asks no other host for anything."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import anyformer
from anyformer.families import PRESETS

pytest.importorskip("sphinx", reason="sphinx is not installed (the extra docs)")
pytest.importorskip("furo", reason="furo is not installed (the extra docs)")
pytest.importorskip("myst_parser", reason="myst-parser is not installed (the extra docs)")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("img", "script") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and "stylesheet" in given.get("rel", ""):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", "docs/site"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "-d", str(out / "trees"), ".", str(out / "html")],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return out / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def broken(pages: dict[Path, Page]) -> Iterator[str]:
    """Every link within the site that leads nowhere."""
    for path, page in pages.items():
        for target in (*page.links, *page.loads):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "#":
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.is_file():
                yield f"{path.name}: {target}"
            elif parts.fragment and there.suffix == ".html" and unquote(parts.fragment) not in pages[there].places:
                yield f"{path.name}: no place {target}"


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 35
    assert list(broken(pages)) == []


def test_a_broken_link_is_seen(pages: dict[Path, Page]) -> None:
    path = min((path for path in pages if path.name == "index.html"), key=lambda path: len(path.parts))
    wrong = Page('<a href="docs/none.html">a</a><a href="docs/show.html#none">b</a>')
    assert list(broken({**pages, path: wrong})) == [
        "index.html: docs/none.html",
        "index.html: no place docs/show.html#none",
    ]


def test_no_other_host_is_asked(pages: dict[Path, Page]) -> None:
    assert [load for page in pages.values() for load in page.loads if urlsplit(load).netloc] == []


def test_the_api_has_every_public_name_with_words(site: Path) -> None:
    text = (site / "docs" / "site" / "api.html").read_text(encoding="utf-8")
    for name in anyformer.__all__[1:]:
        assert f'id="anyformer.{name}"' in text


def test_the_catalogue_has_its_diagrams(site: Path) -> None:
    text = (site / "docs" / "catalogue.html").read_text(encoding="utf-8")
    drawn = set(re.findall(r'<img alt="The block diagram of ([^"]+)" src="../_images/\1.svg"', text))
    assert {PRESETS[name].family for name in drawn} == {preset.family for preset in PRESETS.values()}


def test_it_can_be_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "docs/compare" in index
    assert '"bootstrap"' in index or "bootstrap:" in index
