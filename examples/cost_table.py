"""Parameters, FLOPs and cache of several architectures at one context, side by side.

python examples/cost_table.py gpt2-xl llama2-7b llama3-8b --seq-len 4096
"""

from __future__ import annotations

import argparse

import anyformer as af
from anyformer.costs import CostReport

HEADER = ("architecture", "parameters", "training FLOPs/token", "of it attention", "cache bytes/token")


def row(name: str, report: CostReport) -> tuple[str, ...]:
    """Return one line of the table; attention is what grows with the context: scores and values."""
    terms = report.forward_flops
    share = (terms["scores"] + terms["values"]) / report.forward_flops_total
    per_token = sum(kind.nbytes_per_token for kind in report.cache)
    return (
        name,
        f"{report.parameters.total:,}",
        f"{report.training_flops_per_token:,.0f}",
        f"{share:.1%}",
        f"{per_token:,}",
    )


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", help="presets, spec files or model directories")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a sequence")
    options = parser.parse_args()
    print(f"One sequence of {options.seq_len:,} tokens; pairs that the masks hide are not counted; bfloat16 cache.\n")
    print(f"| {' | '.join(HEADER)} |\n|---|---:|---:|---:|---:|")
    for name in options.models:
        print(f"| {' | '.join(row(name, af.cost(af.load_spec(name), seq_len=options.seq_len)))} |")


if __name__ == "__main__":
    main()
