"""Turns of a conversation of ours, each read from its beginning or from what is new, and of transformers' Llama, which reads all.

    python -m benchmarks.conversation --quick

A decoder of 95M parameters is told 512 tokens, then answers eight times with 32 tokens each to 64 more. The time is that of
the eight turns; all sides start from the same weights and must write the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.generation import Decoding, Prefixes, generate_ids, lay_out_for_decoding
from anyformer.model import Transformer
from benchmarks import measure, pair

SHAPE = pair.Shape(d_model=768, n_layers=12, n_heads=12, n_kv_heads=4, d_ff=2048, vocab_size=8192, n_positions=2048)
TOLD, TURNS, SAID, ANSWERED = 512, 8, 64, 32


def goes_on(model: Transformer, prefixes: Prefixes, ids: Tensor) -> Tensor:
    """The answer behind all that was said, which leaves what it read for the next turn."""
    begun = prefixes.taken(ids[0].tolist())
    steps = Decoding(model, ids, max_new_tokens=ANSWERED, cache=True if begun is None else begun)
    said = torch.tensor([[step[0] for step in steps]])
    read = steps.read()
    prefixes.keep(torch.cat((ids, said), 1)[0, : read.n].tolist(), read)
    return said


def conversation(answer: Callable[[Tensor], Tensor]) -> Tensor:
    """All that is said, [1, token]: what is told, then what each turn adds and what is answered."""
    told = torch.randint(0, SHAPE.vocab_size, (1, TOLD + TURNS * SAID), generator=torch.Generator().manual_seed(0))
    text, rest = told[:, :TOLD], told[:, TOLD:]
    for turn in rest.split(SAID, 1):
        text = torch.cat((text, turn), 1)
        text = torch.cat((text, answer(text)), 1)
    return text


def sides(ours: Transformer, theirs: Any) -> dict[str, Callable[[], Tensor]]:
    """What holds a conversation, by side."""
    model, other = lay_out_for_decoding(ours.eval(), several=True), theirs.eval()

    def transformers(ids: Tensor) -> Tensor:
        whole = other.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWERED, do_sample=False)
        return whole[:, ids.shape[1] :]

    def known() -> Tensor:
        prefixes = Prefixes(model)
        return conversation(lambda ids: goes_on(model, prefixes, ids))

    return {
        "ours": known,
        "ours, read anew": lambda: conversation(lambda ids: generate_ids(model, ids, max_new_tokens=ANSWERED)),
        "transformers": lambda: conversation(transformers),
    }


def main() -> None:
    given = measure.arguments("A conversation's turns, what was said before read again or not.")
    torch.set_num_threads(1)
    theirs = pair.theirs(SHAPE)
    ours = pair.ours(SHAPE)
    found = sides(ours, theirs)
    texts = {tuple(once()[0].tolist()) for once in found.values()}
    if len(texts) > 1:
        raise SystemExit("error: the sides write different tokens, so their times say nothing")
    work = {side: lambda once=once: measure.cpu_seconds(once) for side, once in found.items()}
    taken = measure.turns(work, 2 if given.quick else 9)
    rows = [
        measure.row(
            f"a conversation of {TURNS} turns, speed x {of}",
            measure.speed_ratio(taken, "ours", side),
            least=least,
            cpu_seconds=measure.rounded(taken),
        )
        for of, side, least in (
            ("reading all anew", "ours, read anew", 2.0),
            ("transformers, reading all", "transformers", 2.0),
        )
    ]
    shape = pair.facts(SHAPE) | {"told": TOLD, "turns": TURNS, "said": SAID, "answered": ANSWERED}
    measure.record("conversation", given.out, rows, {"shape": shape})


if __name__ == "__main__":
    main()
