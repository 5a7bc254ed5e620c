"""A specification as a person writes it: in phrases, by likeness, with what is usual left out, and told all faults at once."""

import pytest

import anyformer as af
from anyformer.errors import SpecError
from anyformer.layers import AddSpec, And, Causal, GQASpec, Not, Or, Prefix, RMSNormSpec, RotarySpec, SlidingWindow
from anyformer.layers.mask import Mask
from anyformer.spec import ModelSpec, Window, decode

MODEL = """\
anyformer: 1
stack:
  d_model: 64
  embedding: {terms: [{kind: Tokens, table: {shared: tokens, rows: 100}}]}
  blocks:
    n: 6
    pattern: 5b a
    a:
      sublayers:
      - branches: [mixer: {kind: Attention, projection: "GQA(8, n_kv_heads=2, rotary=Rotary(1e6))", mask: Causal}]
        norm_in: RMSNorm
      - branches: [mixer: {kind: GatedFeedForward, d_ff: 176, activation: SiLU}]
        norm_in: RMSNorm(1e-5)
    b: {like: a, mask: Causal & SlidingWindow(16), rotary.theta: 10000}
  norm: RMSNorm
heads: [table: {shared: tokens, rows: 100}]
"""
LOCAL, PREFIX = SlidingWindow(size=Window(64)), Prefix(size=Window(4))


def model(old: str = "", new: str = "") -> ModelSpec:
    assert old in MODEL
    return af.loads(MODEL.replace(old, new, 1))


def refused(old: str, new: str) -> str:
    with pytest.raises(SpecError) as caught:
        model(old, new)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_second_kind_of_layer_is_the_first_with_changes() -> None:
    local, full = model().stack.blocks[0], model().stack.blocks[5]
    mixer, other = (block.sublayers[0].branches[0].mixer for block in (local, full))
    assert full.sublayers[1] == local.sublayers[1]
    assert mixer == other.but(  # nothing else differs
        mask=Causal() & SlidingWindow(size=Window(16)),
        projection=GQASpec(n_heads=8, n_kv_heads=2, rotary=RotarySpec(theta=1e4)),  # pyright: ignore[reportArgumentType]
    )
    assert full.sublayers[1].norm_in == RMSNormSpec(eps=1e-5)
    assert af.loads(af.dumps(model())) == model()


def test_the_residual_and_the_initialisation_are_the_usual_ones() -> None:
    assert model().stack.residual == AddSpec()
    assert model().init == af.preset("llama2-7b").spec.init


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("Causal & SlidingWindow(64)", And(masks=(Causal(), LOCAL))),
        ("Causal & SlidingWindow(size=64) & ~Prefix(4)", And(masks=(Causal(), LOCAL, Not(mask=PREFIX)))),
        ("Causal | Prefix(4) & SlidingWindow(64)", Or(masks=(Causal(), And(masks=(PREFIX, LOCAL))))),
        ("(Causal | Prefix(4)) & SlidingWindow(64)", And(masks=(Or(masks=(Causal(), PREFIX)), LOCAL))),
    ],
)
def test_masks_are_written_as_they_are_combined_in_python(text: str, mask: Mask) -> None:
    assert decode(text, Mask) == mask


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Causal & ", "'Causal & ' cannot be read"),
        ("Causal & Slidingwindow(4)", "did you mean 'SlidingWindow'?"),
        ("SlidingWindow(4, 5)", "cannot be read"),
        ("SlidingWindow(4, size=5)", "cannot be read"),
        ("SlidingWindow(size=4, size=5)", "cannot be read"),
        ("Causal & RMSNorm", "'RMSNorm' is no kind of Mask"),
        ("SlidingWindow(0)", "SlidingWindow.size = 0"),
        ("__import__('os').system('true') & Causal", "cannot be read"),
        ("~" * 5000 + "Causal", "cannot be read"),
    ],
)
def test_a_phrase_that_says_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        decode(text, Mask, "mask")
    assert said in str(caught.value)


def test_what_nobody_has_defined_may_be_ones_own() -> None:
    for kind, own in (
        ("Zigzag", True),
        ("GELU", False),
        ("Causa", True),
    ):  # unknown, of another sort, near one that is known
        with pytest.raises(SpecError, match=f"'{kind}' is no kind of Mask") as caught:
            decode(kind, Mask, "mask")
        assert str(caught.value).endswith("; one of your own is known once its file is imported (--import)") == own


def test_all_faults_are_told_at_once() -> None:
    said = refused("norm_in: RMSNorm\n", "norm_in: rmsnorm\n        norm_inn: RMSNorm\n")
    assert said.startswith("the text: 2 faults: (1) stack.blocks.a.sublayers[0]: Sublayer has no field 'norm_inn'")
    assert "(2) stack.blocks.a.sublayers[0].norm_in: 'rmsnorm' is no kind of Map (did you mean 'RMSNorm'?)" in said
    said = refused("d_model: 64\n  embedding:", "d_modell: 64\n  embeding:")
    assert all(f"({i})" in said for i in (1, 2, 3))
    assert "Stack needs d_model, embedding" in said
    with pytest.raises(SpecError) as caught:
        af.loads(MODEL.replace("RMSNorm", "RMSNrom"))
    said = str(caught.value)
    assert said.count("'RMSNrom' is no kind of Map (did you mean 'RMSNorm'?)") == 3
    assert said.count("; there are BatchNorm, ") == 1
    said = refused("norm_in: RMSNorm\n", "norm_in: RMSNorm(eps=-1)\n")
    assert said.startswith("the text: stack.blocks.a.sublayers[0].norm_in: RMSNorm.eps = -1")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("like: a", "like: z", "stack.blocks.b.like = 'z' is none of the letters that are written out: a"),
        ("like: a", "like: [a]", "stack.blocks.b.like = ['a'] is none of the letters that are written out: a"),
        ("mask: Causal & S", "maks: Causal & S", "no 'maks' in what it is like (did you mean 'mask'?)"),
        ("mask: Causal & SlidingWindow(16)", "norm_in: null", "'norm_in' stands at 4 places; say which: sublayers.0."),
        ("rotary.theta: 10000", "rotary.theta: -1", "Rotary.theta = -1"),
        ("rotary.theta: 10000", "rotary.theta: [1]", "stack.blocks.b.rotary.theta = [1] must be of type float"),
    ],
)
def test_a_change_of_what_it_is_like_says_where(old: str, new: str, said: str) -> None:
    assert said in refused(old, new)


def test_letters_that_are_all_like_another() -> None:
    with pytest.raises(SpecError, match="written out: none is; write one out"):
        af.loads("anyformer: 1\nstack: {blocks: {n: 2, pattern: a, a: {like: b}, b: {like: a}}}")


def test_a_whole_path_is_itself() -> None:
    changed = model("mask: Causal & SlidingWindow(16)", "sublayers.0.norm_in: RMSNorm(1e-3)").stack.blocks[0]
    assert changed.sublayers[0].norm_in == RMSNormSpec(eps=1e-3)
    assert changed.sublayers[1].norm_in == RMSNormSpec(eps=1e-5)


def test_a_field_that_stands_deeper_is_found() -> None:
    with pytest.raises(SpecError, match=r"Model has no field 'd_model'; it has .*; d_model stands in stack$"):
        model().but(d_model=512)
    with pytest.raises(SpecError, match=r"no field 'contxt' \(did you mean 'context'\?\)"):
        model().but(contxt=512)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            "table: {shared: tokens, rows: 90}",
            "rows is 100 in stack.embedding.terms.0.table and 90 in heads.0.table; make them",
        ),
        (
            "{transform: [Linear(d_out=32)], table: {shared: tokens, rows: 100}}",
            "their tensors have other shapes in stack.embedding.terms.0.table and in heads.0.table; give each a name",
        ),
    ],
)
def test_parts_of_one_name_that_differ_are_told_by_what_and_where(head: str, said: str) -> None:
    told = refused("heads: [table: {shared: tokens, rows: 100}]", f"heads: [{head}]")
    assert f"two different Table parts share the name 'tokens': {said}" in told


def test_a_part_is_named_by_its_kind_in_a_refusal() -> None:
    gated, router = "{kind: GatedFeedForward, d_ff: 176, activation: SiLU}", "{n_experts: 2, top_k: 1}"
    told = refused(gated, f"{{kind: MoE, router: {router}, expert: {{kind: S6, width: 8, state_dim: 4}}}}")
    assert "MoE.expert = S6 cannot be one of many experts" in told
