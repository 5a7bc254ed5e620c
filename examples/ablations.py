"""What the ablations of the literature change of an architecture: parameters, FLOPs and cache, a variant a row.

python examples/ablations.py
python examples/ablations.py llama2 norm=LayerNorm positions=alibi d_ff=5504
"""

from __future__ import annotations

import argparse

import anyformer as af

CHANGES = ("norm=LayerNorm", "placement=post", "positions=alibi", "activation=GELU", "attention=MQA", "tied=true")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", nargs="?", default="llama2", help="a preset, a path, or a variant of one")
    parser.add_argument("changes", nargs="*", default=CHANGES, metavar="row=VALUE")
    options = parser.parse_args()
    base = af.load_spec(options.base)
    print("| variant | parameters | forward FLOPs/token | cache bytes/token |")
    print("|---|---|---|---|")
    for name in ("", *(f"+{change}" for change in options.changes)):
        found = af.diff(base, af.load_spec(options.base + name))
        figures = found.totals[1]
        cells = (figures.parameters, round(figures.flops_per_token), round(figures.cache_nbytes_per_token))
        print(f"| {options.base}{name} | {' | '.join(f'{cell:,}' for cell in cells)} |")


if __name__ == "__main__":
    main()
