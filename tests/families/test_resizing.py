"""The same architecture at another size: what is kept, and how near it comes."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    Causal,
    EngramSpec,
    GatedDeltaNetSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LearnedPositionsSpec,
    LightningAttentionSpec,
    MoESpec,
    NormSpec,
    SlidingWindow,
    SSDSpec,
)
from anyformer.resizing import resize, shrink
from anyformer.spec import Count, ModelSpec, TableSpec, Width, Window, parameters
from tests.sample import sampled

SOME = ("transformer-lm", "transformer-big", "gpt2-xl", "llama-7b", "llama2-70b", "llama3.2-1b")


def attentions(spec: ModelSpec) -> list[GQASpec]:
    return list(dict.fromkeys(value for value in spec.nested() if isinstance(value, GQASpec)))


def widths(spec: ModelSpec) -> set[int]:
    return {value.d_ff for value in spec.nested() if hasattr(value, "d_ff")}  # type: ignore[attr-defined]


def kinds(spec: ModelSpec) -> set[str]:
    return {value.kind for value in spec.nested()}


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(SOME), millions=st.floats(1.5, 400), vocab=st.sampled_from([300, 4096, None]))
def test_a_given_number_of_parameters(name: str, millions: float, vocab: int | None) -> None:
    old, wanted = af.preset(name).spec, round(millions * 1e6)
    if vocab is None and wanted < 40 * old.vocab_size:
        return  # the tables alone would be larger
    try:
        new = af.resize(old, n_params=wanted, vocab_size=vocab)
    except SpecError:
        # Widths are multiples of 8 and depths whole, so that the least models are far apart.
        assert wanted < 200 * (vocab or old.vocab_size)
        return
    assert 0.8 < parameters(new).total / wanted < 1.25
    assert new.vocab_size == (vocab or old.vocab_size)
    assert kinds(new) == kinds(old)
    assert [head.name for head in new.heads] == [head.name for head in old.heads]
    ratio = new.stack.d_model / old.stack.d_model
    for d_ff in widths(new):
        assert min(abs(d_ff - old_ff * ratio) for old_ff in widths(old)) <= 4  # to a multiple of 8
    ideal = old.n_layers * math.sqrt(ratio)
    assert abs(new.n_layers - ideal) <= 2.5
    for mine, theirs in zip(attentions(new), attentions(old), strict=False):
        assert mine.n_heads % mine.kv_heads == 0
        assert (mine.kv_heads == mine.n_heads) == (theirs.kv_heads == theirs.n_heads) or mine.n_heads == 1
        assert (mine.kv_heads == 1) or theirs.kv_heads != 1
        dim = mine.head_dim or new.stack.d_model // mine.n_heads
        assert dim % 2 == 0


@pytest.mark.parametrize("name", SOME)
def test_non_embedding_parameters(name: str) -> None:
    new = af.resize(af.preset(name), n_params=3_000_000, vocab_size=4096, count="non_embedding")
    assert parameters(new).non_embedding == pytest.approx(3e6, rel=0.25)


def test_grouped_queries_stay_grouped() -> None:
    """70B has 64 heads on 8 keys and values: the share of an eighth is kept as near as whole numbers let it."""
    for millions in (2, 5, 20, 100, 1000):
        new = af.resize(af.preset("llama2-70b"), n_params=millions * 10**6, vocab_size=1000)
        for attention in attentions(new):
            assert attention.n_heads % attention.kv_heads == 0
            assert 1 / 16 <= attention.kv_heads / attention.n_heads <= 1 / 4 or attention.n_heads < 8


def test_pairs_of_heads_stay_pairs() -> None:
    """Of a Differential Transformer, whatever widths are tried on the way, such as one of 241 times 128 features."""
    spec = af.preset("diff-transformer-3b").spec
    for wanted in (3 * 10**5, 3 * 10**6, 10**8, 10**10):
        new = af.resize(spec, n_params=wanted, vocab_size=300)
        assert 0.8 < parameters(new).total / wanted < 1.25
        assert [attention.n_heads % 2 for attention in attentions(new)] == [0]
    grouped = changed(spec, GQASpec, n_heads=Count(32), n_kv_heads=Count(8), head_dim=Width(64))
    (attention,) = attentions(af.resize(grouped, d_model=1024))
    assert attention.n_heads % attention.kv_heads == attention.kv_heads % 2 == 0
    assert attention.n_heads / attention.kv_heads == 4


def test_context_sets_the_learned_positions() -> None:
    new = af.resize(af.preset("gpt2"), context=77, vocab_size=300)
    (positions,) = {value.n_positions for value in new.nested() if isinstance(value, LearnedPositionsSpec)}
    assert (positions, new.context) == (77, 77)
    assert new.stack.d_model == 768
    assert new.n_layers == 12


@pytest.mark.parametrize("preset", sampled(PRESETS))
def test_only_the_vocabulary_changes_where_only_that_is_asked(preset: af.Preset) -> None:
    old, new = preset.spec, af.resize(preset, vocab_size=317)
    assert new.vocab_size == 317
    # A second table of more tokens is cut down to all there are, and grows back with the first; an id that is none any more
    # becomes the last.
    cut = any(isinstance(part, TableSpec) and 317 < part.rows < old.vocab_size for part in old.nested())
    if not cut and not any(part.end >= 317 for part in old.nested(EngramSpec)):
        assert af.resize(new, vocab_size=old.vocab_size) == old
    assert (widths(new), attentions(new)) == (widths(old), attentions(old))


def test_a_pattern_after_a_beginning_of_its_own() -> None:
    """K-EXAONE: a dense layer, then windows three to one, of which the dense layer's is the first."""

    def shape(spec: ModelSpec) -> str:
        dense = [not any(isinstance(v, MoESpec) for v in block.nested()) for block in spec.stack.blocks]
        seen = [any(isinstance(v, SlidingWindow) for v in block.nested()) for block in spec.stack.blocks]
        return "".join("Ww"[not a] if b else "Ff"[not a] for a, b in zip(dense, seen, strict=True))

    spec = af.preset("k-exaone-236b-a23b").spec
    assert shape(spec) == "Wwwf" + 11 * "wwwf"
    assert shape(shrink(spec)) == "Wwwfw"
    for n_layers in (5, 8, 14):
        assert shape(resize(spec, d_model=512, n_layers=n_layers)) == ("Wwwf" + 4 * "wwwf")[:n_layers]
    dense_first = af.preset("glm-4.5").spec
    assert shape(resize(dense_first, d_model=512, n_layers=31)) == "F" + 30 * "f"
    assert shape(shrink(dense_first)) == "Ff"


def test_odd_sizes_of_ones_own_are_left_alone() -> None:
    """Widths that are no multiples of 8, and heads that resizing would not choose."""
    old = changed(af.shrink(af.preset("llama2-7b")), GatedFeedForwardSpec, d_ff=101)
    new = af.resize(old, vocab_size=50)
    assert (widths(new), new.vocab_size) == ({101}, 50)


class StretchedNormSpec(NormSpec):
    """A norm of a user's own, with sizes in a list."""

    eps: float = 1e-6
    stretches: tuple[Width, ...]


def test_what_is_within_a_mixer_follows_wherever_it_stands() -> None:
    """Heads go together by a rule of the mixer's; each other size by its own type, in lists and in parts of a user's own, too."""
    own = StretchedNormSpec(stretches=(Width(64), Width(256)))
    for name, mixer in (
        ("qwen3-next-80b-a3b", GatedDeltaNetSpec),
        ("mamba2-130m", SSDSpec),
        ("minimax-01", LightningAttentionSpec),
    ):
        spec = changed(af.preset(name).spec, mixer, norm=own)
        new = af.resize(spec, d_model=spec.stack.d_model // 2)
        assert {each.stretches for each in new.nested(StretchedNormSpec)} == {(32, 128)}, name


def test_a_width_that_is_asked_for_is_had() -> None:
    """Be it no multiple of 8; each preset of it can be built."""
    for name in sorted(PRESETS)[::9]:
        new = af.resize(name, d_model=100)
        assert new.stack.d_model == 100, name
        assert parameters(new).total > 0
    assert af.resize("gptj-6b", d_model=12).stack.d_model == 12


def test_a_size_that_none_has_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no model of this architecture has about 1,000 parameters; the nearest has"):
        af.resize(af.preset("gpt2"), n_params=1000)
    for name in ("n_params", "vocab_size", "context", "d_model", "n_layers"):
        for number in (0, -64):
            size: Any = {name: number}
            with pytest.raises(SpecError, match=f"{name} = {number} makes no model"):
                af.resize(af.preset("gpt2"), **size)
    for size, says in (
        ({"n_layers": 10**12}, "n_layers = 1000000000000 must be at most 10,000"),
        ({"d_model": 10**12}, "d_model = 1000000000000 must be at most 268,435,456"),
        ({"d_model": 7}, "d_model = 7 gives no head an even width; give an even number"),
        ({"context": 1.5}, "context = 1.5 must be a whole number"),
    ):
        with pytest.raises(SpecError, match=says):
            resize(af.preset("gpt2"), **size)
    with pytest.raises(SpecError, match="the pattern of 34 layers can be cut to 6, not to 2"):
        af.resize(af.preset("gemma3-4b"), n_layers=2)
    with pytest.raises(SpecError, match="n_params or d_model, not both"):
        af.resize(af.preset("gpt2"), n_params=10**6, d_model=64)
    with pytest.raises(SpecError, match=r"resized to d_model = 268435456 and .* FeedForward.d_ff = 1073741824"):
        af.resize(af.preset("gpt2"), d_model=2**28)


def test_what_cannot_be_built_is_refused_and_not_healed() -> None:
    broken = changed(af.shrink(af.preset("llama2-7b")), GQASpec, n_heads=5, n_kv_heads=None)
    with pytest.raises(SpecError, match="n_heads = 5 does not divide d_model = 32"):
        af.resize(broken, n_params=50_000)


class TestShrink:
    @pytest.mark.parametrize("preset", sampled(PRESETS))
    def test_presets(self, preset: af.Preset) -> None:
        old, new = preset.spec, af.shrink(preset)
        assert new.stack.d_model == 32
        assert new.vocab_size <= 101
        # Switch has 16 experts in both stacks, Mistral Large 4 a latent of eight heads' width in five layers
        assert parameters(new).total < 520_000
        assert kinds(new) == kinds(old)
        for mine, theirs in zip(attentions(new), attentions(old), strict=False):
            # Of several that differ beside as many heads of queries (MiMo's windows, Gemma 4's), the fewest become one.
            beside = {each.kv_heads for each in attentions(old) if each.n_heads == theirs.n_heads}
            fewest = theirs.kv_heads == min(beside) < max(beside)
            grouped = 1 < theirs.kv_heads < theirs.n_heads
            alone = theirs.kv_heads == 1 < theirs.n_heads
            assert mine.kv_heads == (1 if alone or (grouped and fewest) else 2 if grouped else 4)
            assert mine.n_heads == 4

    def test_windows_are_shorter_than_what_they_are_tried_on(self) -> None:
        old = changed(af.preset("llama2-7b").spec, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(4096)))
        sizes = {value.size for value in af.shrink(old).nested() if isinstance(value, SlidingWindow)}
        assert sizes == {5}

    def test_a_pattern_keeps_one_period(self) -> None:
        """Gemma 3: five local layers, then one that sees all."""
        old = af.preset("gemma3-1b").spec
        seen = [any(isinstance(v, SlidingWindow) for v in block.nested()) for block in af.shrink(old).stack.blocks]
        assert seen == [True] * 5 + [False]


def test_of_layers_in_no_pattern_each_is_kept_after_each() -> None:
    """Nemotron-H's feed-forwards follow Mamba-2 and attention, and Mamba-2 begins and follows a feed-forward."""
    mixers = [block.sublayers[0].branches[0].mixer.kind for block in af.shrink(af.preset("nemotron-h")).stack.blocks]
    assert mixers == ["SSD", "FeedForward", "SSD", "Attention", "FeedForward"]


def test_a_pattern_that_begins_later_goes_on() -> None:
    """Trinity's two dense layers, then experts whose every fourth layer has no window: one of the first, one period."""
    large = af.preset("trinity-mini").spec
    for spec in (af.shrink(large), af.resize(large, d_model=512, n_layers=11)):
        full = [not any(isinstance(value, SlidingWindow) for value in block.nested()) for block in spec.stack.blocks]
        dense = [not any(value.kind == "MoE" for value in block.nested()) for block in spec.stack.blocks]
        n = spec.n_layers
        assert dense == [True] + [False] * (n - 1)
        assert full == [False, *([False, True, False, False] * n)[: n - 1]]
    assert af.shrink(large).n_layers == 5
    assert af.resize(large, d_model=512, n_layers=11).n_layers == 11
