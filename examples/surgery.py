"""A trained decoder as the beginning of others: fewer heads, fewer neurons, experts, more layers, another vocabulary.

Each is evaluated as it begins, then trained on a little, beside the same architecture from nothing.

anyformer train llama2 --params 1M --data stdlib --tokens 4M --out runs/first
anyformer tokenizer train stdlib --vocab 2048 --out runs/tokenizer
python examples/surgery.py runs/first runs/tokenizer stdlib 200k runs/surgery
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.layers import GatedFeedForwardSpec, GQASpec
from anyformer.recipe import SMALL

EXPERTS = "MoE(router=Router(n_experts=8,top_k=2,renormalise=true))"


def cases(spec: af.ModelSpec, tokenizer: Path, data: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return, by what is done, changes of the architecture and options of `transplant`."""
    n, d_ff, projection = spec.n_layers, next(spec.nested(GatedFeedForwardSpec)).d_ff, next(spec.nested(GQASpec))
    d_model, width = spec.stack.d_model, projection.head_dim or spec.stack.d_model // projection.n_heads
    heads = {"n_heads": projection.n_heads // 2 + 1, "head_dim": width}
    wide = {"d_model": 2 * d_model, "n_heads": 2 * projection.n_heads, "head_dim": width, "d_ff": 2 * d_ff}
    return {
        "as it was": ({}, {}),
        "one head of keys and values": ({"n_kv_heads": 1}, {}),
        "half of the neurons": ({"d_ff": d_ff // 2}, {}),
        "the same, those that matter most": ({"d_ff": d_ff // 2}, {"data": data}),
        f"{heads['n_heads']} of {projection.n_heads} heads": (heads, {"data": data}),
        "twice the neurons": ({"d_ff": 2 * d_ff}, {}),
        "all twice as wide": (wide, {}),
        "half of the stream, the features that matter most": (
            {"d_model": d_model // 2, "n_heads": projection.n_heads, "head_dim": width},
            {"data": data},
        ),
        "8 experts, 2 a token": ({"experts": EXPERTS}, {}),
        "all but the last layer, then all but the first": ({}, {"layers": f"0-{n - 2},1-{n - 1}"}),
        "each layer twice, the second silent": ({}, {"layers": ",".join(f"{i},{i}~" for i in range(n))}),
        "every second layer": ({}, {"layers": f"0-{n - 1}/2"}),
        "as many, those that matter most": ({"n_layers": (n + 1) // 2}, {"data": data}),
        "LayerNorm": ({"norm": "LayerNorm"}, {}),
        "every second mixer a gated DeltaNet": ({"mixer": "[GatedDeltaNet,attention]"}, {}),
        "half of the vocabulary": ({}, {"tokenizer": tokenizer}),
    }


def main() -> None:
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    run, tokenizer, data, tokens, out = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        sys.argv[3],
        sys.argv[4],
        Path(sys.argv[5]),
    )
    n = float(tokens.replace("k", "e3").replace("M", "e6"))
    print("| | numbers carried over | bits a byte at first | trained on | from nothing |\n|---|---:|---:|---:|---:|")
    for i, (name, (changes, options)) in enumerate(cases(af.load_spec(run), tokenizer, data).items()):
        made = af.transplant(af.vary(run, **changes), run, **options)
        size, start = sum(each.numel() for each in made.model.state_dict().values()), out / f"{i}-start"
        af.save(made.model, start, made.tokenizer)
        on = af.train(start, data, init=start, out=out / f"{i}-on", tokens=n, lr=1e-3)
        anew = af.train(made.model.spec, data, tokenizer=made.tokenizer, out=out / f"{i}-anew", tokens=n, lr=1e-3)
        figures = [
            af.evaluate(start, data, held_out=0.05, seq_len=SMALL.seq_len),
            on.result.evaluation,
            anew.result.evaluation,
        ]
        bits = " | ".join(f"{each.bits_per_byte:.3f}" for each in figures if each is not None)
        print(f"| {name} | {made.n_carried / size:.0%} | {bits} |", flush=True)


if __name__ == "__main__":
    main()
