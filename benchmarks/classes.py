"""Training steps beside transformers' classes: models like GPT-2, Gemma 3, T5 and RoBERTa (15 % of its words are asked for) at
some 16M parameters, and single layers of Longformer, BigBird and Reformer; forward, backward, and of models AdamW; float32,
eager, one thread.

    python -m benchmarks.classes --quick

Both sides start from the same weights, which went through files, and see the same tokens. Ours computes the loss as
`anyformer train` does, theirs as `labels=` does. What a layer computes is summed, without loss and head. Each row has a
process of its own: what models before it left in the heap decides which side waits for new pages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer import build
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AxialPositionsSpec, FeedForwardSpec, LearnedPositionsSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.cross_entropy import NOT_PREDICTED, cross_entropy
from anyformer.resizing import resize
from anyformer.spec import Length, ModelSpec, Width
from anyformer.training.step.device import keep_heap
from benchmarks import measure
from benchmarks.twins import twins

BATCH, SEQ_LEN, VOCAB, SIZE = 8, 256, 8192, 16_000_000
MODELS = {"gpt2": 1.10, "gemma3-1b": 1.10, "t5-base": 1.10, "roberta-base": 1.10}  # with the bar of each
MASKED = 0.15  # of words, where a token sees later ones
HASHES = "reformer-crime-and-punishment"
LAYERS = {
    ("longformer-base-4096", 4096): 2.5,
    ("longformer-base-4096", 8192): 2.5,
    ("bigbird-base", 4096): 1.8,
    ("bigbird-base", 8192): 2.5,
    (HASHES, 8192): 1.5,
}
Step = Callable[[], float]


def drawn(seed: int, vocab_size: int, *shape: int) -> Tensor:
    return torch.randint(5, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def steps(name: str) -> dict[str, Step]:
    """A training step of each side, which gives the loss."""
    spec = resize(preset(name).spec, n_params=SIZE, vocab_size=VOCAB, context=2 * SEQ_LEN)
    ours, theirs = twins(spec)
    source, ids, labels = (drawn(seed, VOCAB, BATCH, SEQ_LEN) for seed in range(3))
    masked = spec.encoder is None and later_tokens_seen(spec.stack) is not None
    if masked:
        chosen = torch.rand(labels.shape, generator=torch.Generator().manual_seed(3)) < MASKED
        labels = torch.where(chosen, labels, NOT_PREDICTED)
    head, n_labels = ours.head(), int((labels != NOT_PREDICTED).sum())

    def our_loss() -> Tensor:
        given: dict[str, Any] = {"decoder_input_ids": ids} if spec.encoder else {}
        out = ours(source if spec.encoder else ids, output_logits=False, **given)
        return cross_entropy(head, out.read_by(head), labels)[0] / n_labels

    def their_loss() -> Tensor:
        if spec.encoder:
            return theirs(input_ids=source, decoder_input_ids=ids, labels=labels, use_cache=False).loss
        if masked:
            return theirs(input_ids=ids, labels=labels).loss
        return theirs(input_ids=ids, labels=labels, shift_labels=labels, use_cache=False).loss

    sides = {"ours": (ours.eval(), our_loss), "transformers": (theirs.eval(), their_loss)}  # without dropout
    return {name: measure.training_step(*side) for name, side in sides.items()}


def one_layer(name: str, length: int) -> ModelSpec:
    """The preset's architecture, its second layer alone (of Reformer the one that hashes), 256 wide, as long as that.

    Its feed-forward is 64 wide, so that what is compared is attention and its projections.
    """
    whole = preset(name).spec
    narrow = resize(whole, d_model=256, n_layers=whole.n_layers, vocab_size=512)
    one = narrow.but(stack=narrow.stack.but(blocks=narrow.stack.blocks[1:2]), context=Length(length))
    one = changed(one, FeedForwardSpec, d_ff=Width(64))
    one = changed(one, LearnedPositionsSpec, n_positions=length)
    return changed(one, AxialPositionsSpec, shape=(64, length // 64))


def our_passes(model: Any, length: int) -> Step:
    """Both passes of a layer of ours, which give the sum of what it writes."""
    ids = drawn(0, 512, 1, length)

    def once() -> float:
        y = model(ids, output_logits=False).last_hidden_state
        y.sum().backward()
        return y.detach().abs().sum().item()

    return once


def passes(name: str, length: int) -> dict[str, Step]:
    """Both passes of a layer of each side, which give the sum of what it writes."""
    spec = one_layer(name, length)
    ours, theirs = twins(spec)
    ids = drawn(0, 512, 1, length)
    base = getattr(theirs, theirs.base_model_prefix)
    base.train()  # without which Reformer's class has no backward pass
    for module in base.modules():
        for field in ("p", "dropout"):
            if isinstance(getattr(module, field, None), float):
                setattr(module, field, 0.0)

    def their_pass() -> float:
        y = base(input_ids=ids)[0]
        y.sum().backward()
        return y.detach().abs().sum().item()

    return {"ours": our_passes(ours, length), "transformers": their_pass}


def growing(length: int) -> Step:
    """Both passes of the layer that hashes, which give their CPU seconds."""
    once = our_passes(build(one_layer(HASHES, length), seed=0), length)
    return lambda: measure.cpu_seconds(once)


def compared(name: str, made: Callable[[], dict[str, Step]], n: int, least: float) -> dict[str, Any]:
    """The row of a comparison; the numbers that both sides give are compared first."""
    sides = made()
    found: dict[str, list[float]] = {side: [] for side in sides}
    work = {side: lambda side=side: measure.cpu_seconds(lambda: found[side].append(sides[side]())) for side in sides}
    taken = measure.turns(work, n)
    apart = max(abs(a - b) / abs(b) for a, b in zip(*found.values(), strict=True))
    if apart > 1e-3:
        raise SystemExit(f"error: {name}: the two sides are {apart:.2g} apart, so their times say nothing")
    return measure.row(
        name, measure.speed_ratio(taken), least=least, largest_difference=apart, cpu_seconds=measure.rounded(taken)
    )


def rows(n: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """By its name what measures a row, in n turns."""
    models = {f"training step like {name}, x transformers": (partial(steps, name), bar) for name, bar in MODELS.items()}
    layers = {
        f"layer of {of[0]} at {of[1]:,}, x transformers": (partial(passes, *of), bar) for of, bar in LAYERS.items()
    }
    found = {name: partial(compared, name, made, n, bar) for name, (made, bar) in {**models, **layers}.items()}
    name = f"layer of {HASHES}: time of 32,768 over 8,192"
    return {**found, name: partial(grown, name, max(1, n // 3))}


def grown(name: str, n: int) -> dict[str, Any]:
    """The row of how time grows with length, memory being kept as training keeps it: no new pages for the longer one alone."""
    keep_heap()
    taken = measure.turns({str(length): growing(length) for length in (8192, 32_768)}, n)
    return measure.row(name, measure.speed_ratio(taken, "8192", "32768"), most=5.0, seconds=measure.rounded(taken))


def main() -> None:
    torch.set_num_threads(1)
    if "--row" in sys.argv:
        name, n = sys.argv[sys.argv.index("--row") + 1 :]
        print(json.dumps(rows(int(n))[name]()))
        return
    given = measure.arguments("Training steps beside transformers' classes.")
    n = 3 if given.quick else 9
    found = [measure.printed_elsewhere("benchmarks.classes", "--row", name, str(n), mapped=False) for name in rows(n)]
    shape = {"batch": BATCH, "seq_len": SEQ_LEN, "vocab_size": VOCAB, "parameters": SIZE, "layer_width": 256}
    measure.record("classes", given.out, found, {"shape": shape})


if __name__ == "__main__":
    main()
