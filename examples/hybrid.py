"""A trained decoder made a hybrid: a gated DeltaNet in the place of every second attention, taught by what the decoder was.

All other parts keep their weights. Beside it, the same hybrid from nothing, on as many tokens.

anyformer train llama2 --params 1M --data stdlib --tokens 4M --out runs/first
python examples/hybrid.py runs/first stdlib 400k runs/hybrid
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyformer as af
from anyformer.recipe import SMALL


def hybrid(spec: af.ModelSpec) -> af.ModelSpec:
    """Return the architecture with a state of constant size in every second layer, of attention's heads."""
    return af.vary(spec, mixer="[GatedDeltaNet,attention]")


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    run, data, tokens, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    made = af.transplant(hybrid(af.load_spec(run)), run)
    af.save(made.model, out / "start", made.tokenizer)
    print(made)
    how = {"tokens": float(tokens.replace("k", "e3").replace("M", "e6")), "lr": 1e-3}
    taught = af.train(out / "start", data, init=out / "start", out=out / "taught", distillation=str(run), **how)
    anew = af.train(made.model.spec, data, tokenizer=made.tokenizer, out=out / "anew", **how)
    print("| nats a token of the validation text | |")
    print("|---|---:|")
    for name, path in ((str(run), run), ("the hybrid of its parts", out / "start")):
        print(
            f"| {name} | {af.evaluate(path, data, held_out=0.05, seq_len=SMALL.seq_len).loss:.3f} |"
        )  # rows as trained
    for name, trained in (("taught", taught), ("from nothing", anew)):
        assert trained.result.evaluation is not None
        print(f"| {name}, {trained.result.tokens:,} tokens | {trained.result.evaluation.loss:.3f} |")


if __name__ == "__main__":
    main()
