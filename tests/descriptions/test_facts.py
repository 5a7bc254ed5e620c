"""Facts against the papers that name them, and what notebooks show."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from anyformer.descriptions import card, diagram, words
from anyformer.descriptions.card.card import Card
from anyformer.descriptions.card.stack import CardRow
from anyformer.descriptions.facts import head_sharing, norm_places
from anyformer.families import PRESETS, preset
from anyformer.layers import AttentionSpec, Causal, Mask, Prefix, SlidingWindow, SymmetricWindow
from anyformer.spec import SublayerSpec, Window, parameters
from anyformer.variants.parts import is_tied
from tests.sample import sampled

# Multi-query (Shazeer 2019) and multi-head latent attention by the words of their papers.
MQA = {"palm-8b", "palm-62b", "palm-540b", "falcon-7b", "gemma-2b", "recurrentgemma-2b", "recurrentgemma-9b"}
STATES = {f"mamba-{size}" for size in ("130m", "370m", "790m", "1.4b", "2.8b")}  # and no attention
STATES |= {"mamba2-130m", "mamba2-2.7b", "codestral-mamba-7b", "falcon-mamba-7b"}
STATES |= {f"rwkv-4-{size}" for size in ("169m", "430m", "1b5", "3b", "7b", "14b")}
STATES |= {"lstm-medium", "gru-medium", "awd-lstm-ptb", "awd-lstm-wikitext2", "xlstm-7b", "fnet-base", "fnet-large"}
STATES |= {"nystromformer-4096"}  # and none from token to token
MLA = {"deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3-mtp", "glm-4.7-flash", "mistral-small-4"}
MLA |= {
    "a.x-k1",
    "a.x-k2-light",
    "deepseek-v3.2",
    "glm-5",
    "glm-5.3-flash",
    "hy-v4",
    "kimi-linear-48b-a3b",
    "ling-3.0-flash",
    "longcat-flash",
    "minicpm3-4b",
    "mistral-large-4",
    "sarvam-105b",
    "youtu-llm-2b",
}


@pytest.mark.parametrize("name", sampled([*PRESETS]))
def test_heads_share_keys_as_their_numbers_say(name: str) -> None:
    found = {head_sharing(v.projection) for v in PRESETS[name].spec.nested() if isinstance(v, AttentionSpec)}
    rows = {row.key: row.value for row in card(PRESETS[name]).rows}
    if name in STATES:
        assert found == set()
    elif name in MLA:
        assert found == {"MLA"}
    elif "n_kv_heads" in rows and rows["n_kv_heads"] != rows["n_heads"]:
        said, heads_of = rows["n_kv_heads"], rows["n_heads"]  # lists where some layers attend, or have other numbers
        said = [said] * len(heads_of) if isinstance(heads_of, list) and not isinstance(said, list) else said
        pairs = {*zip(said, heads_of, strict=True)} if isinstance(heads_of, list) else None
        each = {*said} - {None} if isinstance(said, list) else {said}
        alike = [*each] == [rows["n_heads"]] if pairs is None else all(n in (None, heads) for n, heads in pairs)
        assert found == {"MHA" if alike else "MQA" if 1 in each else "GQA"}
    else:
        assert found == {"MHA"}
    assert name not in MQA or found == {"MQA"}


PLACES = {
    "transformer-base": {"sum"},
    "gpt2": {"in"},
    "gemma2-9b": {"in", "out"},
    "olmo2-7b": {"out"},
    "gptj-6b": {"in"},
}


@pytest.mark.parametrize("name", PLACES)
def test_where_norms_stand(name: str) -> None:
    """Vaswani 2017, section 3.1; Radford 2019, section 2.3; Gemma 2, table 1; OLMo 2, section 3.2; GPT-J's source."""
    sublayers = [value for value in preset(name).spec.nested() if isinstance(value, SublayerSpec)]
    assert {norm_places(sublayer) for sublayer in sublayers} == {frozenset(PLACES[name])}


def test_tied_heads() -> None:
    """GPT-2 and Gemma share the table (their papers), LLaMA's releases hold two."""
    tied = {name: is_tied(preset(name).spec.heads[0], preset(name).spec) for name in ("gpt2", "gemma-7b", "llama-7b")}
    assert tied == {"gpt2": True, "gemma-7b": True, "llama-7b": False}


MASKS: dict[str, tuple[Mask, str]] = {
    "causal": (Causal(), "causal"),
    "window": (Causal() & SlidingWindow(size=Window(4096)), "causal, window of 4,096"),
    "both sides": (SymmetricWindow(radius=Window(256)), "bidirectional, window of 256 to each side"),
    "prefix": (Causal() | Prefix(), "causal after a prefix"),
    "prefix of a size": (Causal() | Prefix(size=Window(4)), "causal after a prefix, earlier tokens or prefix of 4"),
}


@pytest.mark.parametrize("case", MASKS)
def test_who_sees_whom_in_words(case: str) -> None:
    mask, said = MASKS[case]
    assert words.seen(mask) == said


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "mixtral-8x7b", "albert-base", "t5-small"])
def test_parameters_by_part_are_all_of_them(name: str) -> None:
    row = card(preset(name))["n_params_by_part"]
    assert sum(row.value.values()) == parameters(preset(name).spec).total
    assert row.words == ", ".join(f"{part} {n:,}" for part, n in row.value.items())


def test_parameters_by_part_of_gpt2() -> None:
    """(50,257 + 1,024) rows of 768; 12 layers of 4 maps of 768² and their biases, of 8 · 768² with 5 · 768, of 2 norms."""
    d = 768
    wanted = {"embedding": 51_281 * d, "attention": 12 * (4 * d * d + 4 * d), "feed-forward": 12 * (8 * d * d + 5 * d)}
    assert card(preset("gpt2"))["n_params_by_part"].value == {**wanted, "norms": 25 * 2 * d}


def test_a_card_shows_itself_and_nothing_of_it_is_markup() -> None:
    rows = Card((CardRow("model", "x", "a & b", "<script>alert(1)</script>"), CardRow("source", "y", "c", "d")))
    text = rows._repr_html_()
    root = ElementTree.fromstring(text)
    assert [cell.text for cell in root.iter("td")] == ["a & b", "<script>alert(1)</script>", "c", "d"]
    assert [cell.text for cell in root.iter("th")] == ["model", "source"]
    assert "<script" not in text


def test_a_diagram_shows_itself_as_a_picture_of_its_own() -> None:
    """An SVG inside a page would give it its styles; one in an image does not."""
    import base64

    text = diagram(preset("gpt2"))._repr_html_()
    data = re.fullmatch(r'<img alt="[\w ]+" src="data:image/svg\+xml;base64,([\w+/=]+)">', text)
    assert data is not None
    assert ElementTree.fromstring(base64.b64decode(data[1])).tag.endswith("svg")
