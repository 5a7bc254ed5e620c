"""The page of an inspection: one file that loads nothing, escapes everything, and says every figure that was found."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.disk import atomic
from anyformer.errors import RunFailed, UsageError
from anyformer.inspection.page import render_page, write_page
from anyformer.inspection.page_figures import FigureScale, figure
from anyformer.inspection.page_tokens import shown
from anyformer.inspection.results import (
    BranchFigures,
    HeadFigures,
    Inspection,
    LayerAnswer,
    LayerFigures,
    Map,
    PartsFigures,
    Reading,
)
from tests.cli.running import refused, run
from tests.hostile.faulty_disk import no_space_left

VOID = {"meta", "br", "input"}
HOSTILE = "</script><b>&\"'<!--"


class Page(HTMLParser):
    """Collects tables, texts by tag and scripts, and fails on tags that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str]]] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.tables: list[tuple[str, list[list[str]]]] = []  # class, and the texts of the cells
        self.texts: dict[str, list[str]] = {}
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += list(given.items())
        if tag == "table":
            self.tables.append((given.get("class", ""), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
        if tag not in VOID:
            self.open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        tag, given = self.open[-1]
        self.texts.setdefault(given.get("id") or tag, []).append(data)
        if tag not in ("script", "style"):
            self.text += data
        if any(each in ("td", "th") for each, _ in self.open):
            self.tables[-1][1][-1][-1] += data

    def of(self, name: str) -> list[list[list[str]]]:
        return [rows for kind, rows in self.tables if kind.split()[0] == name]

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.attributes if each == name]

    @property
    def data(self) -> dict[str, Any]:
        def refused(constant: str) -> Any:
            raise ValueError(f"{constant} is no JSON")

        return json.loads("".join(self.texts["data"]), parse_constant=refused)


def page(found: Inspection) -> Page:
    return Page(render_page(found, "a run"))


def weights(heads: int, queries: int, keys: int) -> torch.Tensor:
    return torch.randn(heads, queries, keys, generator=torch.Generator().manual_seed(0)).mul(3).softmax(-1)


def head(number: int, layer: int = 0, stack: str = "", kind: str = "attention", **figures: float | None) -> HeadFigures:
    return HeadFigures(
        stack,
        layer,
        kind,
        number,
        **{"importance": 0.0125 * (number + 1), "entropy": 0.5, **figures},  # type: ignore[arg-type]
    )


def layer(
    number: int, ended: float | None, without: float, *branches: tuple[str, float], stack: str = ""
) -> LayerFigures:
    return LayerFigures(stack, number, ended, without, 0.125, tuple(BranchFigures(*each) for each in branches))


def decoder(tokens: tuple[str, ...] = ("The", " cat", "\n")) -> Inspection:
    """Two layers of two heads, and a text of which the last token's successor is unknown."""
    right = (*tokens[1:], None)
    said = tuple(each or "?" for each in right)
    found = tuple(None if each is None else 0.25 for each in right)
    answers = (
        LayerAnswer("embedding", ("x",) * len(tokens), (0.0625,) * len(tokens), found),
        LayerAnswer("0", said, (0.5,) * len(tokens), found),
        LayerAnswer("1", said, (0.75,) * len(tokens), found),
    )
    maps = tuple(Map("", at, "attention", tokens, tokens, weights(2, len(tokens), len(tokens))) for at in range(2))
    return Inspection(
        "causal", "nats a token", 2.5, 12_345,
        (layer(0, 4.5, 1.5, ("attention", 0.75), ("feed-forward", 0.5)),
         layer(1, 2.5, -0.25, ("attention", -0.125), ("feed-forward", 0.0))),
        tuple(head(at, on, itself=0.25, previous=0.625, first=0.0, distance=2.0) for on in range(2) for at in range(2)),
        (), {}, Reading(tokens, right, answers, maps),
    )  # fmt: skip


def both_stacks() -> Inspection:
    """An encoder, and a decoder of unlike layers, one with two feed-forwards and one without attention."""
    source, target = ("ein", " Satz", "."), ("a", " sentence")
    layers = (
        layer(0, None, 0.5, ("attention", 0.25), stack="encoder"),
        layer(
            0, 3.0, 0.5, ("attention", 0.1), ("cross-attention", 0.2), ("feed-forward", 0.3), ("feed-forward", 0.4),
            stack="decoder",
        ),
        layer(1, 2.0, 0.5, ("mamba", 0.9), stack="decoder"),
    )  # fmt: skip
    heads = (
        *(head(at, stack="encoder") for at in range(3)),
        *(head(at, stack="decoder", importance=None) for at in range(2)),
        head(1, stack="decoder", kind="cross-attention"),
    )
    maps = (
        Map("encoder", 0, "attention", source, source, weights(3, 3, 3)),
        Map("decoder", 0, "attention", target, target, weights(2, 2, 2)),
        Map("decoder", 0, "cross-attention", target, source, weights(2, 2, 3)),
    )
    answers = tuple(LayerAnswer(str(at), target, (0.5, 0.5), (0.5, 0.5)) for at in range(3))
    return Inspection("seq2seq", "nats a token", 2.0, 7, layers, heads, (), {}, Reading(target, target, answers, maps))


def test_it_loads_nothing(tmp_path: Path) -> None:
    html = write_page(decoder(), tmp_path / "page.html", title="a run").read_text(encoding="utf-8")
    assert "http" not in html
    assert "@import" not in html
    assert "url(" not in html
    found = Page(html)
    assert {name for name, _ in found.attributes} & {"src", "href", "srcset", "action", "data", "onclick"} == set()
    assert set(found.tags) & {"link", "iframe", "object", "embed", "img"} == set()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_was_found_is_said_in_words_and_facts() -> None:
    found = page(decoder())
    for words in (
        "Passing over layer 0 costs 1.500 nats a token, the most; without layer 1 the loss is 0.250 lower.",
        "The head that matters most is head 1 of layer 0.",
    ):
        assert words in found.text
    assert found.texts["dd"] == ["causal", "2.5000", "12,345", "2", "4"]
    assert found.texts["title"] == ["a run"]
    none_lower = replace(decoder(), layers=(layer(0, 4.0, 1.5), layer(1, 3.0, 0.25)), heads=())
    assert "costs 1.500 nats a token, the most; layer 1 costs 0.250, the least." in page(none_lower).text


def test_a_row_a_layer_says_each_figure() -> None:
    (rows,) = page(decoder()).of("layers")
    assert rows == [
        ["layer", "ended here", "passed over", "withoutattention", "withoutfeed-forward", "turned"],
        ["0", "4.500", "+1.500", "+0.750", "+0.500", "0.125"],
        ["1", "2.500", "−0.250", "−0.125", "0.000", "0.125"],
    ]


def test_stacks_have_tables_of_their_own_and_unlike_layers_empty_cells() -> None:
    encoder, decoder = page(both_stacks()).of("layers")
    assert encoder == [["encoder", "passed over", "withoutattention", "turned"], ["0", "+0.500", "+0.250", "0.125"]]
    kinds = ["attention", "cross-attention", "feed-forward", "feed-forward 2", "mamba"]
    assert decoder[0] == ["decoder", "ended here", "passed over", *(f"without{kind}" for kind in kinds), "turned"]
    assert decoder[1][3:8] == ["+0.100", "+0.200", "+0.300", "+0.400", ""]
    assert decoder[2][3:8] == ["", "", "", "", "+0.900"]


def test_bars_begin_at_zero_and_go_the_way_of_their_sign() -> None:
    scale = FigureScale.of([3.0, -1.0, None, nan, inf])
    assert scale.bar(3.0, str) == ("3.0", 25.0, 75.0, False)
    assert scale.bar(-1.0, str) == ("-1.0", 0.0, 25.0, True)
    assert scale.bar(0.0, str) == ("0.0", 25.0, 0.0, False)
    assert scale.bar(None, str) == ("", 0.0, None, False)
    assert scale.bar(nan, str).width is None
    assert FigureScale.of([]).bar(0.0, str).width == 0.0
    assert [figure(value) for value in (-1.5, -0.0001, 1234.5)] == ["−1.500", "0.000", "1,234.500"]
    html = render_page(decoder(), "")
    bars = re.findall(r'<div class="bar cost">.*?</div>', html)
    assert len(bars) == 6
    assert ["below" in bar for bar in bars] == [False, False, False, True, True, False]


def test_heads_stand_in_a_grid_by_their_numbers() -> None:
    encoder, decoder, cross = page(both_stacks()).of("heads")
    assert encoder[0] == ["encoder attention", "0", "1", "2"]
    assert [rows[0][0] for rows in (decoder, cross)] == ["decoder attention", "decoder cross-attention"]
    found = page(both_stacks())
    assert [value for name, value in found.attributes if name == "data-head"] == [str(at) for at in range(6)]
    assert len(cross[1]) == 3  # there is no head 0, and its place is kept


def test_what_colours_heads_is_what_is_known_of_some() -> None:
    found = page(decoder())
    assert found.values("value") == ["importance", "previous", "first", "itself", "distance", "entropy"]
    assert [each["name"] for each in found.data["measures"]] == found.values("value")
    assert found.data["heads"][1] == [0.025, 0.625, 0.0, 0.25, 2.0, 0.5]
    tips = [tip for tip in found.values("title") if tip.startswith("head")]
    assert tips[3].split("\n") == [
        "head 1 of layer 1", "importance 0.0250", "token before 0.62", "first token 0.00", "itself 0.25", "distance 2.00",
        "spread 0.50",
    ]  # fmt: skip
    both = page(both_stacks())
    assert both.values("value") == ["importance", "entropy"]
    assert both.data["heads"][3] == [None, 0.5]


def parts(layer: int, what: str, *importance: float, kind: str = "experts", stack: str = "") -> PartsFigures:
    return PartsFigures(stack, layer, kind, what, torch.tensor(importance, dtype=torch.float64))


def test_experts_are_as_dark_as_they_matter_beside_the_one_that_matters_most() -> None:
    few = parts(0, "experts", 0.0005, 0.002), parts(1, "experts", 0.001, 0.0, 0.004)
    found = page(replace(decoder(), parts=(*few, parts(1, "experts", 0.002, stack="encoder"))))
    main, encoder = found.of("experts")
    assert main[0] == ["experts", "0", "1", "2"]
    assert main[1:] == [["0", "0.0005", "0.0020", ""], ["1", "0.0010", "0.0000", "0.0040"]]
    assert encoder[0] == ["encoder experts", "0"]
    levels = [style for style in found.values("style") if style.startswith("--v:")][:6]
    assert levels == ["--v:0.125", "--v:0.5", "--v:0.25", "--v:0.0", "--v:1.0", "--v:0.5"]
    tips = [tip for tip in found.values("title") if tip.startswith("expert ")]
    assert (tips[1], tips[-1]) == (
        "expert 1 of layer 0\nimportance 0.0020",
        "expert 0 of encoder layer 1\nimportance 0.0020",
    )
    small = page(replace(decoder(), parts=(parts(0, "experts", 1.25e-6, 0.0),)))
    assert small.of("experts")[0][1] == ["0", "0.0000013", "0.0000000"]
    assert page(replace(decoder(), parts=(parts(0, "experts", 0.0, nan),))).of("experts")[0][1] == ["0", "0.00", "–"]


def test_neurons_are_said_by_how_few_do_most() -> None:
    alike, one = parts(0, "neurons", *[0.1] * 10, kind="feed-forward"), parts(1, "neurons", *[0.0] * 9, 2.0)
    found = page(replace(decoder(), parts=(alike, one, parts(2, "neurons", 0.0, nan))))
    assert found.of("layers")[-1] == [
        ["layer", "of", "neurons", "half by", "90 % by"],
        ["0", "feed-forward", "10", "50%", "90%"],
        ["1", "experts", "10", "10%", "10%"],
        ["2", "experts", "2", "0%", "0%"],
    ]
    assert not found.of("experts")


def test_maps_are_bytes_from_which_the_weights_come_back() -> None:
    for found in (decoder(), both_stacks()):
        reading = found.reading
        assert reading is not None
        for told, own in zip(page(found).data["maps"], reading.maps, strict=True):
            levels = np.frombuffer(b64decode(told["weights"]), np.uint8).reshape(told["shape"])
            assert told["shape"] == list(own.weights.shape)
            # Half a level of the root, r: (r + d)² - r² < 2d + d².
            assert np.abs((levels / 255) ** 2 - own.weights.numpy()).max() <= 1 / 255 + 0.25 / 255**2
            assert (told["queries"], told["keys"]) == (list(map(shown, own.queries)), list(map(shown, own.keys)))


def test_heads_and_maps_find_each_other() -> None:
    maps = page(both_stacks()).data["maps"]
    assert [each["group"] for each in maps] == ["encoder attention", "decoder attention", "decoder cross-attention"]
    assert [each["figures"] for each in maps] == [[0, 1, 2], [3, 4], [None, 5]]
    tokens = ("a", "b")
    assert (
        page(
            replace(decoder(), reading=Reading((), (), (), (Map("", 0, "attention", (), (), weights(2, 0, 0)),)))
        ).data["maps"]
        == []
    )
    twice = Map("", 0, "attention", tokens, tokens, weights(1, 2, 2))
    found = replace(decoder(), heads=(head(0), head(0)), reading=Reading(tokens, (None, None), (), (twice, twice)))
    assert [each["figures"] for each in page(found).data["maps"]] == [[0], [1]]


def test_the_lens_has_the_last_layer_on_top() -> None:
    (rows,) = page(decoder()).of("lens")
    assert rows == [
        ["at", "The", "·cat", "⏎"],
        ["layer 1", "·cat", "⏎", "?"],
        ["layer 0", "·cat", "⏎", "?"],
        ["embedding", "x", "x", "x"],
        ["right", "·cat", "⏎", ""],
    ]
    found = page(decoder())
    tips = [tip.split("\n") for tip in found.values("title") if tip.startswith(("layer 1", "embedding"))]
    assert tips[0] == ["layer 1, at The", "says ·cat, 0.750", "right: ·cat, 0.250"]
    assert tips[2] == ["layer 1, at ⏎", "says ?, 0.750"]
    assert tips[3] == ["embedding, at The", "says x, 0.062", "right: ·cat, 0.250"]
    levels = [style for style in found.values("style") if style.startswith("--v:")]
    assert levels[:3] == ["--v:0.25", "--v:0.25", "--v:0.75"]  # of the right one, and of its own where none is known
    assert found.values("class").count("hit") == 4


@pytest.mark.parametrize(
    ("token", "read"),
    [
        (" a b", "·a·b"),
        ("\n\n\t", "⏎⏎⇥"),
        ("", "∅"),
        ("\x00\x1b[31m\r", "\\x00\\x1b[31m\\r"),
        ("\u202eevil\u200b\xa0", "\\u202eevil\\u200b\\xa0"),
        ("\ud800", "\\ud800"),
        ("\u0301", "◌\u0301"),
        ("é日本🚀", "é日本🚀"),
        ("x" * 49, "x" * 47 + "…"),
        ("x" * 48, "x" * 48),
        (HOSTILE, HOSTILE),
    ],
)
def test_every_token_can_be_read(token: str, read: str) -> None:
    assert shown(token) == read


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    tokens = (HOSTILE, " \u202e\ud800", "{{ 7 * 7 }}", "\u2028")
    plain, found = page(decoder(("a", "b", "c", "d"))), decoder(tokens)
    found = replace(
        found,
        objective=HOSTILE, unit=f"{HOSTILE}\ud800",
        layers=tuple(
            replace(each, stack=HOSTILE, branches=(BranchFigures(HOSTILE, 0.5), *each.branches[1:]))
            for each in found.layers
        ),
        heads=tuple(replace(each, stack=HOSTILE, kind=HOSTILE) for each in found.heads),
    )  # fmt: skip
    html = write_page(found, tmp_path / "page.html", title=f"{HOSTILE}\x1b\ud800").read_text(encoding="utf-8")
    nasty = Page(html)
    assert nasty.tags == plain.tags  # nothing of it became an element
    assert "".join(nasty.texts["title"]) == f"{HOSTILE}\\x1b\\ud800"
    assert nasty.data["maps"][0]["keys"] == [HOSTILE, "·\\u202e\\ud800", "{{·7·*·7·}}", "\\u2028"]
    (rows,) = nasty.of("lens")
    assert rows[0][1:] == nasty.data["maps"][0]["keys"]
    assert html.count("</script>") == 2
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", html)


def inspections() -> Iterator[Inspection]:
    plain = decoder()
    assert plain.reading is not None
    broken = (layer(0, nan, inf, ("attention", -inf)), layer(1, None, nan, ("attention", nan)))
    heads = tuple(head(at, importance=nan, entropy=inf, itself=-inf) for at in range(2))
    answers = tuple(replace(each, probability=(nan,) * 3, right=(inf, nan, None)) for each in plain.reading.answers)
    maps = tuple(
        replace(each, weights=each.weights * weight)
        for each, weight in zip(plain.reading.maps, (nan, inf), strict=True)
    )
    reading = replace(plain.reading, answers=answers, maps=maps)
    yield Inspection("causal", "nats a token", nan, 0, broken, heads, (), {}, reading)
    yield replace(plain, layers=(), heads=(), reading=None)
    yield replace(plain, heads=(), reading=replace(plain.reading, maps=()))
    yield decoder(("one",))


def test_what_is_not_finite_is_a_dash() -> None:
    found = page(next(inspections()))
    (rows,) = found.of("layers")
    assert rows[0] == ["layer", "passed over", "withoutattention", "turned"]  # nothing is known of the ends
    assert [row[1:3] for row in rows[1:]] == [["–", "–"], ["–", "–"]]
    assert found.texts["dd"][1] == "–"
    assert "A loss of – nats a token." in found.text
    assert found.data["heads"] == [[None, None, None]] * 2
    assert {style for style in found.values("style") if style.startswith("--v")} == {"--v:0.0"}
    assert [b64decode(each["weights"]) for each in found.data["maps"]] == [bytes(18)] * 2
    assert not re.search(r"\b(nan|inf|NaN|Infinity|None|undefined)\b", found.text + "".join(found.texts["data"]))


def test_what_there_is_none_of_has_no_section() -> None:
    _, bare, mambas, single = (page(found) for found in inspections())
    assert bare.texts.get("h2") is None
    assert bare.data == {"measures": [], "heads": [], "maps": []}
    assert mambas.texts["h2"] == ["What each layer does", "What it would say if it ended there"]
    assert mambas.texts["dd"][-1] == "none"
    assert single.texts["h2"] == [
        "What each layer does", "Where heads look", "One text, token by token", "What it would say if it ended there",
    ]  # fmt: skip
    assert [each["shape"] for each in single.data["maps"]] == [[2, 1, 1]] * 2
    (rows,) = single.of("lens")
    assert rows == [
        ["at", "one"],
        ["layer 1", "?"],
        ["layer 0", "?"],
        ["embedding", "x"],
    ]  # and no row of what is right


def test_a_page_that_cannot_be_written_leaves_the_former_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_page(decoder(), tmp_path / "page.html", title="the former")
    former = path.read_bytes()

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write_all", no_space_left)
        with pytest.raises(RunFailed, match=r"^could not write the page \S+page\.html: No space left .*another place$"):
            write_page(decoder(), path, title="the new one")
    assert path.read_bytes() == former
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.gguf", "a page is a file that ends in .html; name one"),
        ("missing/page.html", "there is no folder .*missing; make it first"),
    ],
)
def test_a_page_is_written_over_no_model_and_its_place_is_looked_at_first(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        write_page(decoder(), tmp_path / name, title="")
    refused(run("inspect", "no", "--text", "a", "--out", tmp_path / name), "page")
