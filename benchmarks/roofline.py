"""Times that the roofline predicts for this machine beside times that it takes: training steps and decoding.

python -m benchmarks.roofline [--quick]

The machine is calibrated first, anew. None of the shapes below is one that calibration measures; each is an architecture of its
own, resized. One thread, CPU time, the fastest of several steps on both sides.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import anyformer as af
from anyformer.costs.hardware.roofline import roofline
from anyformer.measure.calibrate import fastest
from anyformer.measure.here import calibrate
from anyformer.measure.runs import decoding_step, training_step
from anyformer.spec import parameters
from benchmarks.measure import RESULTS, arguments, record, row
from examples.norms import compared

PAGE = Path(__file__).parents[1] / "docs" / "profile.md"
# preset, parameters, vocabulary, tokens of a row, rows in training, rows in decoding
SHAPES = (
    ("llama2-7b", 5_000_000, 8192, 256, 8, 1),
    ("llama3-8b", 24_000_000, 8192, 512, 4, 8),
    ("gpt2", 12_000_000, 8192, 256, 8, 1),
    ("mistral-7b-v0.1", 40_000_000, 4096, 128, 8, 1),
    ("pythia-160m", 16_000_000, 16384, 1024, 2, 4),
    ("qwen2-7b", 10_000_000, 4096, 512, 4, 1),
    ("mixtral-8x7b", 30_000_000, 4096, 256, 8, 2),
    ("olmo-1b", 60_000_000, 8192, 256, 4, 1),
)
MEDIAN, SECONDS, QUICK_SECONDS = 0.20, 4.0, 0.5
NORMS = {"n_params": 10_000_000, "seq_len": 256, "batch": 4}


def main() -> None:
    """Measure, compare, write."""
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    device, budget = torch.device("cpu"), QUICK_SECONDS if options.quick else SECONDS
    found = calibrate("cpu", ("float32",), anew=True, say=lambda what: print(f"calibrating: {what}", flush=True))
    here = found.device
    print(f"calibrated in {found.seconds:.0f} s", flush=True)
    shapes: list[dict[str, Any]] = []
    for name, n_params, vocab_size, seq_len, rows, streams in SHAPES:
        spec = af.resize(af.preset(name), n_params=n_params, vocab_size=vocab_size, context=2048)
        for phase, batch, step in (
            ("training", rows, training_step(spec, rows, seq_len, device)),
            ("decoding", streams, decoding_step(spec, streams, seq_len, device)),
        ):
            said = roofline(spec, device=here, seq_len=seq_len, batch=batch, dtype="float32").phases[phase]
            with torch.set_grad_enabled(phase == "training"):
                measured = fastest(step, device, budget)
            shapes.append(
                {
                    "model": name,
                    "n_params": parameters(spec).total,
                    "phase": phase,
                    "seq_len": seq_len,
                    "batch": batch,
                    "measured_seconds": float(f"{measured:.4g}"),
                    "predicted_seconds": float(f"{said.seconds:.4g}"),
                    "error": round(said.seconds / measured - 1, 4),
                    "bound": said.bound,
                    "parts": {part.part: float(f"{part.seconds:.3g}") for part in said.parts},
                }
            )
            print(*(f"{key} {value}" for key, value in list(shapes[-1].items())[:-1]), sep=", ", flush=True)
    rows_of = []
    for phase in ("training", "decoding"):
        errors = [abs(shape["error"]) for shape in shapes if shape["phase"] == phase]
        rows_of.append(row(f"{phase}, median error of {len(errors)} shapes", statistics.median(errors), most=MEDIAN))
        rows_of.append(row(f"{phase}, largest error", max(errors), most=1.0))
    notes = {"calibration_seconds": round(found.seconds, 1), "shapes": shapes, "norms": list(_norms(budget))}
    record("roofline", options.out, rows_of, notes)
    if options.out == RESULTS:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """Return docs/profile.md with the tables of the result; without a result, as it is."""
    kept = RESULTS / "roofline.json"
    if not kept.is_file():
        return text
    result = json.loads(kept.read_text(encoding="utf-8"))
    for mark, lines in (("roofline", _table(result)), ("norms", _norm_table(result))):
        whole = "\n".join(lines)
        text = re.sub(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", rf"\1{whole}\n\2", text, flags=re.DOTALL)
    return text


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| architecture | parameters | step | measured | predicted | error | bound |"
    yield "|---|---|---|---|---|---|---|"
    for shape in result["shapes"]:
        step = f"{shape['phase']}, {shape['batch']} × {shape['seq_len']:,}"
        times = f"{1e3 * shape['measured_seconds']:,.1f} ms | {1e3 * shape['predicted_seconds']:,.1f} ms"
        size = f"{shape['n_params'] / 1e6:.1f} M"
        yield f"| {shape['model']} | {size} | {step} | {times} | {shape['error']:+.1%} | {shape['bound']} |"
    said = "; ".join(f"{found['name']}: {found['value']:.1%}" for found in result["rows"])
    yield ""
    yield f"{said}. On {result['machine']['processor']}, {result['date'][:10]}; calibration took "
    yield f"{result['calibration_seconds']:.0f} s."


def _norm_table(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| norm | parameters | training step | norms and softmaxes: share of FLOPs | share of time |"
    yield "|---|---|---|---|---|"
    for found in result["norms"]:
        shares = f"{found['share_of_flops']:.2%} | {found['share_of_seconds']:.1%}"
        yield f"| {found['norm']} | {found['n_params']:,} | {found['seconds']:.3f} s | {shares} |"


def _norms(budget_seconds: float) -> Iterator[dict[str, Any]]:
    for name, found in compared(**NORMS, seconds=budget_seconds).items():
        share = found.as_json()["classes"]["training"]["normalisation"]
        yield {
            "norm": name,
            "n_params": found.n_params,
            "seconds": round(found.seconds["training"].measured, 4),
            "share_of_flops": round(share["share_of_flops"], 5),
            "share_of_seconds": round(share["share_of_seconds"], 4),
        }


if __name__ == "__main__":
    main()
