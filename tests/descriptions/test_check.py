"""What `check` finds, against what really happens: models that fail when they run, caches that are allocated, kernels chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import anyformer as af
from anyformer.cache import KVCache
from anyformer.descriptions import Finding, card, check
from anyformer.descriptions.check.errors import errors, misfits
from anyformer.errors import AnyformerError, InputError, SpecError
from anyformer.families import PRESETS, preset
from anyformer.families.compose import changed
from anyformer.families.heads import sentence_embedding
from anyformer.kernels import KERNELS
from anyformer.layers import (
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    LearnedPositionsSpec,
    LinearSpec,
    ReLU,
    ReLU2,
    SlidingWindow,
)
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import Count, Length, ModelSpec, TableSpec, Vocab, Width, Window, cached_calls
from tests.layers.test_own_parts import model_of_own_parts
from tests.sample import sampled


def found(model: ModelSpec, severity: str, about: str) -> list[str]:
    return [finding.text for finding in check(model) if (finding.severity, finding.about) == (severity, about)]


def spec(name: str) -> ModelSpec:
    return preset(name).spec


@pytest.mark.parametrize("name", sampled([*PRESETS]))
def test_no_published_model_has_an_error(name: str) -> None:
    assert list(misfits(spec(name))) == []
    assert list(errors(spec(name))) == []


def narrow_head(model: ModelSpec) -> ModelSpec:
    table = TableSpec(rows=Vocab(model.vocab_size), width=Width(model.stack.d_model // 2))
    return model.but(heads=(model.heads[0].but(table=table),))


def narrow_tokens(model: ModelSpec) -> ModelSpec:
    term, *others = model.stack.embedding.terms
    table = TableSpec(rows=Vocab(model.vocab_size), width=Width(model.stack.d_model // 2))
    terms = (term.but(table=table), *others)
    return model.but(stack=model.stack.but(embedding=model.stack.embedding.but(terms=terms)))


def wide_norm(model: ModelSpec) -> ModelSpec:
    stack = model.stack
    first, *others = stack.blocks
    sublayer, *more = first.sublayers
    wrong = first.but(sublayers=(sublayer.but(norm_sum=LinearSpec(d_out=Width(2 * stack.d_model))), *more))
    return model.but(stack=stack.but(blocks=(wrong, *others)))


MISFITS: dict[str, tuple[str, Callable[[ModelSpec], ModelSpec], str]] = {
    "head": ("llama2-7b", narrow_head, "the head 'lm' has rows of"),
    "tokens": ("gpt2", narrow_tokens, "tokens are vectors of"),
    "norm": ("llama2-7b", wide_norm, "Linear between the branches gives"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_widths_that_do_not_fit(case: str) -> None:
    """Each is refused by PyTorch itself when the model runs."""
    name, spoil, says = MISFITS[case]
    model = spoil(shrink(spec(name)))
    (finding,) = check(model)
    assert (finding.severity, finding.about) == ("error", "sizes")
    assert says in finding.text
    with pytest.raises((RuntimeError, AnyformerError)):
        build(model)(torch.zeros(1, 3, dtype=torch.long))
    assert found(spoil(spec(name)), "error", "sizes"), "at full size, where nothing may be allocated"


def test_heads_that_do_not_divide_the_width() -> None:
    from anyformer.layers import GQASpec

    model = changed(spec("gpt2"), GQASpec, n_heads=Count(7))
    (finding,) = check(model)
    assert finding == Finding("error", "sizes", finding.text)
    assert "GQA.n_heads = 7 does not divide d_model = 768" in finding.text


def test_a_part_without_a_module() -> None:
    from anyformer.spec import MapSpec

    class UnwrittenSpec(MapSpec):
        """Data alone."""

    model = spec("gpt2").but(stack=spec("gpt2").stack.but(norm=UnwrittenSpec()))
    (finding,) = check(model)
    assert "can be counted but not built" in finding.text


def test_a_language_model_that_sees_what_it_predicts() -> None:
    """Oracle: a later token changes what the head says of an earlier one."""
    model = changed(shrink(spec("llama2-7b")), AttentionSpec, mask=Everything())
    (text,) = found(model, "error", "causality")
    assert "attention in all layers" in text
    assert "add Causal to the mask" in text
    ids = torch.arange(6)[None] % model.vocab_size
    other = ids.clone()
    other[0, -1] += 1
    built = build(model)
    with torch.no_grad():
        assert not torch.equal(built(ids).logits[:, 0], built(other).logits[:, 0])
    renamed = model.but(heads=(model.heads[0].but(name="mlm"),))
    assert not found(renamed, "error", "causality"), "a head that is called otherwise may look"


def test_a_window_alone_is_not_causal() -> None:
    model = changed(spec("gpt2"), AttentionSpec, mask=SlidingWindow(size=Window(8)))
    assert found(model, "error", "causality")


def test_a_mask_that_shows_nothing() -> None:
    model = changed(spec("gpt2"), AttentionSpec, mask=Causal() & ~Causal())
    (text,) = found(model, "error", "mask")
    assert text.startswith("token 1,024 sees no key in all layers (mask Causal&Not(mask=Causal))")
    assert card(model)["keys_seen"].words == "none"
    far = changed(spec("gpt2"), AttentionSpec, mask=Causal() & ~SlidingWindow(size=Window(40)))
    assert not found(far, "error", "mask")
    assert card(far)["keys_seen"].words == "not window of 40"


def test_positions_that_run_out() -> None:
    model = changed(shrink(spec("gpt2")), LearnedPositionsSpec, n_positions=Length(6)).but(context=Length(7))
    (text,) = found(model, "error", "positions")
    assert "6 learned positions" in text
    assert "7 tokens" in text
    with pytest.raises(InputError):
        build(model)(torch.zeros(1, 7, dtype=torch.long))
    assert not found(model.but(context=Length(6)), "error", "positions")


def test_an_encoder_that_nobody_reads() -> None:
    whole = spec("transformer-base")
    deaf = whole.but(stack=whole.stack.but(blocks=tuple(b.but(sublayers=b.sublayers[::2]) for b in whole.stack.blocks)))
    assert found(deaf, "error", "encoder")
    assert not found(whole, "error", "encoder")


def test_logits_for_other_ids() -> None:
    model = spec("llama2-7b")
    head = model.heads[0]
    assert head.table is not None
    for rows, n in ((33_000, 1), (31_000, 0)):  # fewer are of tokens that can be read
        other = model.but(heads=(head.but(table=head.table.but(rows=Vocab(rows))),))
        assert len(found(other, "error", "vocabulary")) == n


def test_what_is_no_specification_is_refused() -> None:
    with pytest.raises(SpecError, match="is no specification"):
        check(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt2", "gemma2-2b", "gpt-oss-20b", "bloom-560m", "gpt-neo-2.7b", "transformer-base"])
def test_kernels_are_those_that_run(name: str) -> None:
    model = spec(name)
    attentions = {value for value in model.nested() if isinstance(value, AttentionSpec)}
    text = " ".join(found(model, "consequence", "kernel"))
    refusals = {reason for a in attentions if (reason := KERNELS["sdpa"].refuses(a))}
    assert all(reason in text for reason in refusals)
    assert ("sdpa" in text.replace(" ".join(refusals), "")) == any(
        KERNELS["sdpa"].refuses(a) is None for a in attentions
    )


def test_dense_masks_are_told() -> None:
    (text,) = found(spec("mistral-7b-v0.1"), "consequence", "kernel")
    assert "dense mask [query, key]" in text
    (text,) = found(spec("gpt2"), "consequence", "kernel")
    assert "without a mask's tensor" in text


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "gemma3-1b", "deepseek-v2-lite", "command-r7b"])
def test_bytes_a_token_are_those_that_a_cache_allocates(name: str) -> None:
    """Far beyond every window, one token more takes what `check` says."""
    small = shrink(spec(name))
    texts = found(small, "consequence", "cache")
    (text,) = (text for text in texts if "keep every token" in text)
    lengths = (501, 500)
    larger, smaller = (KVCache(small, length=n, dtype=torch.bfloat16).nbytes for n in lengths)
    facts = larger - smaller - allocated(small, 501) + allocated(small, 500)
    said = int(text.split(": ")[-1].split(" bytes")[0].replace(",", ""))
    assert said == larger - smaller - facts


def allocated(model: ModelSpec, length: int) -> int:
    """Bytes of keys and values alone, counted tensor by tensor."""
    cache = KVCache(model, length=length, dtype=torch.bfloat16)
    return sum(t.nbytes for store in cache.stores for t in getattr(store, "held", {}).values())


def test_rings() -> None:
    texts = found(spec("gemma3-27b"), "consequence", "cache")
    assert texts[0] == "52 of 62 cached layers keep a ring of the last 1,024 tokens"
    assert texts[1].startswith("10 of 62 cached layers keep every token: ")
    assert "the cache stops growing at 4,096 tokens" in found(spec("mistral-7b-v0.1"), "consequence", "cache")
    assert found(spec("gpt2"), "consequence", "cache")[0].startswith(
        "no ring cache: no mask has a limited reach; 12 of 12"
    )


def test_a_latent_cache() -> None:
    """DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.4: (d_c + d_h^R) l, d_c = 512 and d_h^R = 64."""
    text = found(spec("deepseek-v2"), "consequence", "cache")[-1]
    assert text.startswith("a layer keeps one latent of 576 numbers a token")
    kept = {shape for call in cached_calls(spec("deepseek-v2")) for shape in call.shapes.values()}
    assert kept == {(576,)}


def test_where_the_weights_can_go() -> None:
    assert found(spec("gpt2"), "consequence", "export") == ["saved as a Hugging Face directory for GPT2LMHeadModel"]
    vectors = spec("embeddinggemma-300m")
    assert found(vectors, "consequence", "export") == ["saved as a Hugging Face directory for Gemma3TextModel"]
    (said,) = found(vectors.but(heads=(sentence_embedding(layers=(ReLU2(),)),)), "consequence", "export")
    assert said.startswith("saved in our own format")
    (text,) = found(changed(spec("llama2-7b"), AttentionSpec, softcap=7.0), "consequence", "export")
    assert "no class of transformers computes this model" in text
    assert "softcap" in text


def test_what_is_waived_and_by_whom() -> None:
    assert any("MoE waives it" in text for text in found(spec("mixtral-8x7b"), "consequence", "law of bits"))
    assert found(spec("gpt2"), "consequence", "law of bits") == []


def test_parts_of_ones_own_are_run_and_told() -> None:
    own = model_of_own_parts()
    assert [f for f in check(own) if f.severity == "error"] == []
    (text,) = found(own, "consequence", "torch.compile")
    assert "ManhattanNorm" in text
    assert "your own" in text


def test_a_part_of_ones_own_that_fails_is_found() -> None:
    from torch import Tensor

    from anyformer.layers import Part
    from anyformer.spec import MapSpec

    class HalvingSpec(MapSpec):
        """Gives half of what its specification says."""

    class Halving(Part[HalvingSpec]):
        def forward(self, x: Tensor) -> Tensor:
            return x[..., : x.shape[-1] // 2]

    assert Halving is not None
    model = spec("gpt2").but(stack=spec("gpt2").stack.but(norm=HalvingSpec()))
    (finding,) = check(model)
    assert "a forward pass fails" in finding.text


@pytest.mark.parametrize(
    ("name", "change", "about", "says"),
    [
        ("gpt2", {}, "vocabulary", "50,257 is no multiple of 64; 50,304 rows"),
        ("mistral-7b-v0.1", {"context": Length(2048)}, "window", "hides nothing within the context of 2,048"),
        ("llama3.1-8b", {"context": Length(2**18)}, "positions", "stretches 8,192 tokens to 65,536"),
        ("transformer-base", {}, "norms", "the decoder is post-norm"),
    ],
)
def test_notes(name: str, change: dict[str, Length], about: str, says: str) -> None:
    assert any(says in text for text in found(spec(name).but(**change), "note", about))


def test_notes_that_are_not_made() -> None:
    assert [f for f in check(preset("llama2-7b")) if f.severity == "note"] == []


def test_biases_that_nobody_asked_for() -> None:
    said_nothing = FeedForwardSpec(d_ff=Width(64), activation=ReLU())
    plain = spec("t5-small")
    assert not found(plain, "note", "biases")
    by_hand = changed(plain, FeedForwardSpec, bias_in=said_nothing.bias_in, bias_out=said_nothing.bias_out)
    (text,) = found(by_hand, "note", "biases")
    assert "unless bias_in and bias_out are false" in text
    assert not found(spec("gpt2"), "note", "biases")  # all of its maps have them
    assert not found(spec("llama2-7b"), "note", "biases")


def test_a_norm_that_is_missing_at_the_end() -> None:
    model = spec("gpt2")
    assert found(model.but(stack=model.stack.but(norm=None)), "note", "norms")
    assert not found(model, "note", "norms")


def test_a_state_beside_attention_that_looks_both_ways() -> None:
    encoder = af.vary(shrink(spec("bert-base")), mixer="[GatedDeltaNet,attention]")
    (said,) = found(encoder, "note", "masks")
    assert said == "the model looks both ways in attention, while GatedDeltaNet reads what comes before alone"
    assert not found(af.vary(shrink(spec("llama2-7b")), mixer="[GatedDeltaNet,attention]"), "note", "masks")
    assert not found(spec("bert-base"), "note", "masks")
