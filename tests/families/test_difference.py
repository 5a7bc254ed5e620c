"""Where two specifications part."""

from anyformer.families import preset
from anyformer.layers import RMSNormSpec, RotarySpec
from anyformer.spec.difference import differences, first_difference, short
from tests.laws.weights import edited

LLAMA, LLAMA2, LARGE = (preset(name).spec for name in ("llama-7b", "llama2-7b", "llama2-70b"))


def test_equal_specifications_have_none() -> None:
    assert first_difference(LLAMA, edited(LLAMA, RMSNormSpec, lambda norm: norm.but())) is None


def test_the_first_names_path_and_both_values() -> None:
    assert first_difference(LLAMA, LLAMA2) == ("stack.blocks[0].sublayers[0].norm_in.eps", 1e-6, 1e-5)


def test_all_are_found() -> None:
    paths = [path for path, _, _ in differences(LLAMA, LLAMA2)]
    assert len(paths) == 32 * 2 + 2  # two norms a layer, the last norm, the context
    assert paths[-2:] == ["stack.norm.eps", "context"]


def test_other_lengths_and_kinds_are_one_difference() -> None:
    path, a, b = next(d for d in differences(LLAMA2, LARGE) if d[0] == "stack.blocks")
    assert (path, short(a), short(b)) == ("stack.blocks", "32 × Block", "80 × Block")
    changed = LLAMA.but(stack=LLAMA.stack.but(norm=None))
    path, a, b = first_difference(LLAMA, changed) or ("", None, None)
    assert (path, short(a), short(b)) == ("stack.norm", "RMSNorm", "None")
    assert first_difference(RotarySpec(theta=1.0), RotarySpec(theta=2.0)) == ("theta", 1.0, 2.0)


def test_a_tuple_is_told_by_all_its_kinds() -> None:
    terms = preset("bert-base").spec.stack.embedding.values()["terms"]
    assert sorted(term.kind for term in terms) == ["LearnedPositions", "Segments", "Tokens"]
    assert sorted(short(terms).split(", ")) == ["1 × LearnedPositions", "1 × Segments", "1 × Tokens"]
    assert short((*terms, terms[0])).startswith(f"2 × {terms[0].kind}, 1 × ")
    assert short((1, 2)) == "(1, 2)"
