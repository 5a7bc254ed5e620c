"""Parts of families that never met, each combination by name: drawn by the strategy, and under the laws like any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, settings

from anyformer import layers as L
from anyformer.cache import KVCache
from anyformer.errors import KernelError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.resizing import shrink
from anyformer.spec import BlockSpec, BranchSpec, Count, ModelSpec, StackSpec, SublayerSpec, Vocab, Width, Window
from tests.laws.combinations import decoders
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, gradient_distance

WINDOW = L.Causal() & L.SlidingWindow(size=Window(4))


def of(name: str) -> ModelSpec:
    return shrink(preset(name).spec)


def attentions(spec: ModelSpec) -> list[L.AttentionSpec]:
    return [value for value in spec.nested() if isinstance(value, L.AttentionSpec)]


def windowed(attention: L.AttentionSpec) -> bool:
    return any(isinstance(value, L.SlidingWindow) for value in attention.mask.nested())


def parallel(spec: ModelSpec, kind: type) -> bool:
    both = [s for block in spec.stack.blocks for s in block.sublayers if len(s.branches) > 1]
    return any(isinstance(value, kind) for sublayer in both for value in sublayer.nested())


INDEXER = L.IndexerSpec(
    n_heads=Count(6),
    head_dim=Width(8),
    top_k=Window(2),
    norm_key=None,
    compressor=L.CompressorSpec(every=Window(3), overlap=True),
)


def hyper_connected(spec: ModelSpec) -> ModelSpec:
    blocks = tuple(block.but(connection=L.HyperConnectionSpec(iterations=Count(4))) for block in spec.stack.blocks)
    return spec.but(stack=spec.stack.but(blocks=blocks, residual=L.HyperStreamsSpec(n=Count(3))))


def on_blocks(spec: ModelSpec, every: int) -> ModelSpec:
    """Have what its layers write, but its first's, be of blocks of tokens, twice."""
    first, *others = spec.stack.blocks
    mixer = L.ShortenedSpec(every=Window(every), blocks=tuple(others))
    layer = BlockSpec(sublayers=(SublayerSpec(branches=(BranchSpec(mixer=mixer),)),))
    return spec.but(stack=spec.stack.but(blocks=(first, layer, layer)))


def hashed(spec: ModelSpec) -> bool:
    return any(isinstance(value, L.RouterSpec) and value.hashed for value in spec.nested())


# The combination, and whether a specification has it.
NAMED: dict[str, tuple[ModelSpec, Callable[[ModelSpec], bool]]] = {
    "latent attention that slides": (
        changed(of("deepseek-v3"), L.AttentionSpec, mask=WINDOW),
        lambda spec: any(isinstance(a.projection, L.MLASpec) and windowed(a) for a in attentions(spec)),
    ),
    "sinks with soft-caps": (
        changed(of("gpt-oss-20b"), L.AttentionSpec, softcap=2.0),
        lambda spec: any(a.sink and a.softcap for a in attentions(spec)),
    ),
    "Shaw's positions in Falcon's block": (
        changed(of("falcon-7b"), L.AttentionSpec, scores=(L.ShawKeysSpec(farthest=Window(3)),)),
        lambda spec: parallel(spec, L.ShawKeysSpec),
    ),
    "Transformer-XL's positions on latent attention": (
        changed(of("deepseek-v2-lite"), L.AttentionSpec, scores=(L.RelativeSinusoidSpec(),)),
        lambda spec: any(
            isinstance(a.projection, L.MLASpec) and any(isinstance(s, L.RelativeSinusoidSpec) for s in a.scores)
            for a in attentions(spec)
        ),
    ),
    "Gemma's norms around experts with a sink": (
        changed(of("gpt-oss-20b"), L.RMSNormSpec, weight_offset=1.0),
        lambda spec: any(a.sink for a in attentions(spec)) and any(isinstance(v, L.MoESpec) for v in spec.nested()),
    ),
    "gated values of the 2017 decoder, one gate a head": (
        changed(of("transformer-lm"), L.AttentionSpec, gate=L.OutputGateSpec(over="heads")),
        lambda spec: any(a.gate and a.gate.over == "heads" for a in attentions(spec)),
    ),
    "blocks beside LLaMA's grouped queries": (
        changed(of("llama3-8b"), L.AttentionSpec, mask=WINDOW, compressor=L.CompressorSpec(every=Window(3))),
        lambda spec: any(
            isinstance(a.projection, L.GQASpec) and a.compressor and windowed(a) for a in attentions(spec)
        ),
    ),
    "blocks that an indexer chooses, with differences of heads": (
        changed(
            of("diff-transformer-3b"),
            L.AttentionSpec,
            indexer=INDEXER,
            compressor=L.CompressorSpec(every=Window(3), overlap=True),
        ),
        lambda spec: any(a.difference and a.indexer and a.compressor for a in attentions(spec)),
    ),
    "hyper-connections around Mixtral, routed by the token": (
        hyper_connected(changed(of("mixtral-8x7b"), L.RouterSpec, hashed=Vocab(37))),
        lambda spec: hashed(spec) and any(isinstance(v, L.HyperConnectionSpec) for v in spec.nested()),
    ),
    "hyper-connections on AltUp's streams": (
        changed(hyper_connected(of("llama3-8b")), StackSpec, residual=L.StreamsSpec(n=Count(3))),
        lambda spec: (
            isinstance(spec.stack.residual, L.StreamsSpec)
            and any(isinstance(v, L.HyperConnectionSpec) for v in spec.nested())
        ),
    ),
    "Mamba's layers on blocks of tokens": (
        on_blocks(of("mamba-130m"), 2),
        lambda spec: any(any(s.nested(L.S6Spec)) for s in spec.nested(L.ShortenedSpec)),
    ),
    "Mixtral's experts on blocks of tokens, and on blocks of blocks": (
        on_blocks(on_blocks(of("mixtral-8x7b"), 2), 3),
        lambda spec: any(
            any(s.nested(L.MoESpec)) and len([*s.nested(L.ShortenedSpec)]) > 1 for s in spec.nested(L.ShortenedSpec)
        ),
    ),
    "windows of blocks": (
        on_blocks(changed(of("llama3-8b"), L.AttentionSpec, mask=WINDOW), 2),
        lambda spec: any(windowed(a) for s in spec.nested(L.ShortenedSpec) for a in attentions(spec)),
    ),
    "gated values of latent attention": (
        changed(of("deepseek-v3"), L.AttentionSpec, gate=L.OutputGateSpec()),
        lambda spec: any(a.gate and isinstance(a.projection, L.MLASpec) for a in attentions(spec)),
    ),
}
each = pytest.mark.parametrize("name", NAMED)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of what was found, a whole model
@pytest.mark.slow
@each
def test_the_strategy_draws_it(name: str) -> None:
    found = find(
        decoders(),
        NAMED[name][1],
        settings=settings(
            max_examples=3000,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
    assert NAMED[name][1](found)


@each
def test_it_has_what_it_is_called_for_and_decodes_as_it_reads(name: str) -> None:
    spec, has = NAMED[name]
    assert has(spec)
    model, ids = randomised(spec), ids_for(spec, 2, 14)
    with torch.no_grad():
        whole, cache = model(ids).logits, KVCache(spec, batch=2, length=14)
        parts = [model(chunk, cache=cache).logits for chunk in ids.split([5, 1, 3, 1, 4], 1)]
        later = ids.clone()
        later[:, 9:] = (later[:, 9:] + 1) % spec.vocab_size
        close(model(later).logits[:, :9], whole[:, :9])
    close(torch.cat(parts, 1), whole)
    assert (model(later).logits[:, 9:] - whole[:, 9:]).abs().max() > 1e-2


@each
def test_its_kernels_agree_or_refuse_in_one_line(name: str) -> None:
    spec, _ = NAMED[name]
    ids, found = ids_for(spec, 2, 12), []
    for kernel in ("eager", None):
        model = randomised(spec)
        out = model(ids, kernel=kernel).logits
        out.square().mean().backward()
        found.append((out.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    close(found[1][0], found[0][0])
    assert gradient_distance(found[1][1], found[0][1]) < 2e-5
    if any(a.softcap for a in attentions(spec)):
        with pytest.raises(KernelError, match="sdpa cannot cap scores") as error:
            randomised(spec)(ids, kernel="sdpa")
        assert "\n" not in str(error.value)
