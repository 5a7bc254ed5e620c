"""LayerNorm against RMSNorm on your own device: parameters, FLOPs and time of the same model with the one and the other.

python examples/norms.py
python examples/norms.py --params 2M --seq-len 128
"""

from __future__ import annotations

import argparse

import anyformer as af
from anyformer.measure.profile import Profile, profile


def compared(n_params: int, seq_len: int, batch: int, seconds: float = 2.0) -> dict[str, Profile]:
    """Return the profile of LLaMA 2's architecture at a size with each norm."""
    spec = af.resize(af.preset("llama2-7b"), n_params=n_params, vocab_size=8192)
    return {
        norm: profile(af.vary(spec, norm=norm), batch=batch, seq_len=seq_len, budget_seconds=seconds)
        for norm in ("LayerNorm", "RMSNorm")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--params", default="10M", help="about so many parameters: 2M, 10M")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    n_params = round(float(options.params.rstrip("Mm")) * 1e6)
    print("| norm | parameters | training step | norms and softmaxes: share of FLOPs | share of time |")
    print("|---|---|---|---|---|")
    for name, found in compared(n_params, options.seq_len, options.batch).items():
        share = found.as_json()["classes"]["training"]["normalisation"]
        step = f"{found.seconds['training'].measured:.3f} s"
        shares = f"{share['share_of_flops']:.2%} | {share['share_of_seconds']:.1%}"
        print(f"| {name} | {found.n_params:,} | {step} | {shares} |")


if __name__ == "__main__":
    main()
