"""Law 6 for the Transformer of 2017, which transformers has no class for: held against torch.nn's layers."""

import pytest
import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.layers import FeedForwardSpec, GQASpec, LayerNormSpec
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from tests.laws.tolerance import FLOAT32, VISIBLE, close, distance, gradient_distance
from tests.laws.weights import edited, filled, telling
from tests.oracles import transformer2017

N, SOURCE = 12, 9


def names(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Return which tensors of ours, side by side, make each tensor of the oracle."""
    found: dict[str, tuple[str, ...]] = {"table": ("shared.tokens.weight",)}
    cross = spec.encoder is not None
    stacks = [("layers", "stack", cross), *([("encoder", "encoder", False)] if cross else [])]
    for theirs, ours, reads_memory in stacks:
        for i in range(spec.n_layers):
            there, here = f"{theirs}.{i}", f"{ours}.blocks.{i}.sublayers"
            attentions = ["self_attn", *(["multihead_attn"] if reads_memory else [])]
            for end in ("weight", "bias"):
                for j, attention in enumerate(attentions):
                    projection = f"{here}.{j}.branches.0.mixer.projection"
                    found[f"{there}.{attention}.in_proj_{end}"] = tuple(f"{projection}.{x}.{end}" for x in "qkv")
                    found[f"{there}.{attention}.out_proj.{end}"] = (f"{projection}.o.{end}",)
                    found[f"{there}.norm{j + 1}.{end}"] = (f"{here}.{j}.norm_sum.{end}",)
                last = len(attentions)
                found[f"{there}.linear1.{end}"] = (f"{here}.{last}.branches.0.mixer.up.{end}",)
                found[f"{there}.linear2.{end}"] = (f"{here}.{last}.branches.0.mixer.down.{end}",)
                found[f"{there}.norm{last + 1}.{end}"] = (f"{here}.{last}.norm_sum.{end}",)
    return found


def oracle(spec: ModelSpec, weights: dict[str, Tensor]) -> torch.nn.Module:
    heads = next(value for value in spec.nested() if isinstance(value, GQASpec)).n_heads
    d_ff = next(value for value in spec.nested() if isinstance(value, FeedForwardSpec)).d_ff
    kind = transformer2017.LanguageModel if spec.encoder is None else transformer2017.EncoderDecoder
    model = kind(spec.vocab_size, spec.stack.d_model, heads, d_ff, spec.n_layers)
    model.load_state_dict({theirs: torch.cat([weights[n] for n in ours]) for theirs, ours in names(spec).items()})
    return model


def masks(padded: str) -> tuple[Tensor, Tensor]:
    source, target = torch.ones(2, SOURCE, dtype=torch.long), torch.ones(2, N, dtype=torch.long)
    if padded == "right":
        source[1, 6:], target[0, 9:] = 0, 0
    if padded == "left":  # the source alone: torch.nn has no answer for a target that sees no key
        source[1, :3] = 0
    return source, target


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("padded", ["none", "right", "left"])
@pytest.mark.parametrize("name", ["transformer-base", "transformer-big", "transformer-lm"])
def test_logits_and_gradients_are_those_of_torch_nn(name: str, padded: str, kernel: str) -> None:
    spec = shrink(preset(name).spec)
    weights = telling(spec)
    ours, theirs = filled(spec, weights), oracle(spec, weights)
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(0, spec.vocab_size, (2, SOURCE), generator=generator)
    target = torch.randint(0, spec.vocab_size, (2, N), generator=generator)
    source_mask, mask = masks(padded)
    real = mask.bool()
    if spec.encoder is None:
        logits, reference = ours(target, mask, kernel=kernel).logits, theirs(target, real)
    else:
        out = ours(source, source_mask, decoder_input_ids=target, decoder_attention_mask=mask, kernel=kernel)
        logits, reference = out.logits, theirs(source, source_mask.bool(), target, real)
    close(logits[real], reference[real])
    assert logits.std(-1).mean() > 0.5

    weight = torch.randn(reference[real].shape, generator=generator)
    (logits[real] * weight).sum().backward()
    (reference[real] * weight).sum().backward()
    theirs_by_name: dict[str, Tensor] = {}
    for n, parameter in theirs.named_parameters():
        mine = names(spec)[n]
        assert parameter.grad is not None
        theirs_by_name |= dict(zip(mine, parameter.grad.chunk(len(mine)), strict=True))
    assert gradient_distance({n: p.grad for n, p in ours.named_parameters()}, theirs_by_name) < FLOAT32


@pytest.mark.parametrize("field", ["scale", "frequencies", "layout", "start"])
def test_a_distinguishing_field_is_seen(field: str) -> None:
    spec = shrink(preset("transformer-lm").spec)
    embedding, weights = spec.stack.embedding, telling(spec)
    tokens, sinusoid = embedding.terms
    terms = {
        "scale": (tokens.but(scale=None), sinusoid),
        "frequencies": (tokens, sinusoid.but(frequencies="half-1")),
        "layout": (tokens, sinusoid.but(layout="concatenated")),
        "start": (tokens, sinusoid.but(start=1)),
    }[field]
    mutated = spec.but(stack=spec.stack.but(embedding=embedding.but(terms=terms)))
    ids = torch.randint(0, spec.vocab_size, (2, N), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, after = (filled(s, weights)(ids).logits for s in (spec, mutated))
    assert distance(after, before) > VISIBLE * FLOAT32


def test_the_eps_of_a_norm_is_seen() -> None:
    """What a post-norm sees is never small here, so eps is made large on both sides, and then changed on one."""
    spec = shrink(preset("transformer-lm").spec)
    weights = telling(spec)
    for name in weights:  # a first block that writes and reads little: what its norms see is as small as the embedding
        if name.startswith("stack.blocks.0.sublayers.0.branches") or "tokens" in name:
            weights[name] = weights[name] * 1e-3
    still = spec.but(stack=spec.stack.but(embedding=spec.stack.embedding.but(terms=spec.stack.embedding.terms[:1])))
    ids = torch.randint(0, spec.vocab_size, (2, N), generator=torch.Generator().manual_seed(0))
    mutated = edited(still, LayerNormSpec, lambda norm: norm.but(eps=1e-5))
    with torch.no_grad():
        before, after = (filled(s, weights)(ids).logits for s in (still, mutated))
    assert distance(after, before) > VISIBLE * FLOAT32
