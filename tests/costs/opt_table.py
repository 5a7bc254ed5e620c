"""The FLOPs table of OPT's sizes as Stanford's CS336 prints it, and as it is right: docs/cost.md shows both."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.costs import CONVENTIONS
from anyformer.families import preset
from anyformer.spec import Workload

# Row: (preset, tokens of a batch in units of 2^20). The 760M row is GPT-3's: OPT's paper has no such size.
ROWS: Mapping[str, tuple[str, float]] = {
    "760M": ("gpt3-760m", 0.5),
    "1.3B": ("opt-1.3b", 1),
    "2.7B": ("opt-2.7b", 1),
    "6.7B": ("opt-6.7b", 2),
    "13B": ("opt-13b", 4),
    "30B": ("opt-30b", 4),
    "66B": ("opt-66b", 2),
    "175B": ("opt-175b", 2),
}
# As printed: FLOPs of an update; % of MHA, FFN, attention, logits.
PRINTED: Mapping[str, tuple[float, str, str, str, str]] = {
    "760M": (4.3e15, "35", "44", "14.8", "5.8"),
    "1.3B": (1.3e16, "32", "51", "12.7", "5.0"),
    "2.7B": (2.5e16, "29", "56", "11.2", "3.3"),
    "6.7B": (1.1e17, "24", "65", "8.1", "2.4"),
    "13B": (4.1e17, "22", "69", "6.9", "1.6"),
    "30B": (9.0e17, "20", "74", "5.3", "1.0"),
    "66B": (9.5e17, "18", "77", "4.3", "0.6"),
    "175B": (2.4e18, "17", "80", "3.3", "0.3"),
}
# With 8d² for the projections: worked out apart from this code, from the sizes alone.
CORRECT: Mapping[str, tuple[float, float, float, float, float]] = {
    "760M": (3.73e15, 25.5, 51.0, 17.0, 6.5),
    "1.3B": (1.25e16, 27.1, 54.2, 13.5, 5.2),
    "2.7B": (2.47e16, 28.4, 56.9, 11.4, 3.3),
    "6.7B": (1.20e17, 30.1, 60.2, 7.5, 2.2),
    "13B": (4.57e17, 30.8, 61.6, 6.2, 1.4),
    "30B": (1.05e18, 31.5, 63.1, 4.5, 0.9),
    "66B": (1.14e18, 32.0, 64.0, 3.6, 0.5),
    "175B": (3.01e18, 32.3, 64.7, 2.7, 0.3),
}


def cells(row: str, convention: str) -> tuple[int, dict[str, float]]:
    """Return (FLOPs of an update, % of each part) of a row."""
    name, millions = ROWS[row]
    parts = CONVENTIONS[convention].training(preset(name).spec, Workload(int(millions * 2**20) // 2048, 2048))
    whole = sum(parts.values())
    return whole, {part: 100 * flops / whole for part, flops in parts.items()}


def table() -> str:
    """Return the rows of docs/cost.md: the table as printed, computed by `opt-table`, and with 8d² for the projections."""
    lines = []
    for row in ROWS:
        printed, *shares = PRINTED[row]
        flops, wrong = cells(row, "opt-table")
        true_flops, true = cells(row, "megatron")
        right = (true["projections"], true["feed-forward"], true["scores"] + true["values"], true["logits"])
        theirs = " / ".join(shares)
        computed = " / ".join(f"{share:.1f}" for share in wrong.values())
        correct = " / ".join(f"{share:.1f}" for share in right)
        lines.append(f"| {row} | {printed:.1e}: {theirs} | {flops:.3e}: {computed} | {true_flops:.2e}: {correct} |")
    return "\n".join(lines)
