"""What a GPU gives: a training step and decoding of a Llama of 1.24B beside transformers', the card's peaks; kernels.

    python -m benchmarks.gpu --quick

Peaks are those of the card's datasheet, by its name; what the card was just seen to do is beside them. A step is that
of `anyformer train --precision bf16`: weights in float32, autocast, the cross-entropy in chunks, the norm of gradients
clipped, a fused AdamW. Theirs is of the same weights and tokens, its own loss, clipping and AdamW likewise. FLOPs are
those of `anyformer cost`, three times the forward pass, of the pairs that the causal mask shows. Decoding is greedy,
in bfloat16; eager is our default, which replays a graph of the step as it is written. A token's time is that of tokens
17 to 128 of a text: theirs by the difference of two texts, ours within one, since a graph is recorded anew with each
text. Sides take turns, the ratio is the median of neighbouring turns.

`--device cpu --tiny` rehearses all of it. A group that fails is named in the result, and the others go on; what was
found is written after each row. What there is no time for (`--seconds`) is left out.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anyformer as af
from anyformer.costs import cost
from anyformer.families.llama import llama32
from anyformer.generation import CompiledStep, generate_ids, lay_out_for_decoding
from anyformer.generation.decode import Decoding
from anyformer.layers.block import compile_layers
from anyformer.measure.runs import random_rows, trainer_of
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec, parameters
from anyformer.version import __version__
from benchmarks import gpu_kernels, measure, pair
from benchmarks.gpu_kernels import Here, Row, driver, first_line, name_of

PROMPT, NEW, FEW, BEFORE, SEVERAL = 128, 128, 48, 16, 8  # FEW: of a first text; BEFORE: new tokens that do not count
OURS, COMPILED, THEIRS = "ours", "ours, compiled", "transformers"
SECONDS, QUICK_SECONDS = 840.0, 165.0
TABLE = "model.embed_tokens.weight"
ONE_B = pair.Shape(2048, 16, 32, 8, 8192, 128_256, 131_072)
TINY = pair.Shape(64, 2, 4, 2, 128, 512, 131_072)


def specification(here: Here) -> ModelSpec:
    if not here.tiny:
        return af.preset("llama3.2-1b").spec
    return llama32(TINY.n_layers, 64, 4, TINY.d_ff, n_kv_heads=2, head_dim=16, vocab_size=TINY.vocab_size)


def ours(here: Here, dtype: torch.dtype | None = None) -> Transformer:
    """Our model with random weights drawn where it computes, the same at each call."""
    model = build(specification(here), None, device=here.device)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.02) if weight.dim() > 1 else weight.fill_(1.0)
    return model if dtype is None else model.to(dtype)


def theirs(here: Here, model: nn.Module, dtype: torch.dtype = torch.float32) -> Any:
    """A model of transformers with the weights of ours."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = TINY if here.tiny else ONE_B
    long = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        hidden_size=shape.d_model, num_hidden_layers=shape.n_layers, num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads, intermediate_size=shape.d_ff, vocab_size=shape.vocab_size,
        max_position_embeddings=shape.n_positions, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, **long},
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with here.device:
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    table = "shared.tokens.weight"  # tied
    weights = {TABLE if name == table else pair.theirs_of(name): x for name, x in model.state_dict().items()}
    missing = made.load_state_dict(weights, strict=False)
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        raise RuntimeError(f"their names are others: {missing}")
    return made


class Training:
    """Steps of both sides on the same rows; what one holds beside the other's step is weights and moments."""

    def __init__(self, here: Here) -> None:
        self.here, self.seq_len = here, 32 if here.tiny else 2048
        self.model = ours(here)
        self.spec = self.model.spec
        self.theirs: Any = theirs(here, self.model)
        self.trainer = trainer_of(self.model, random_rows(self.spec, 1, self.seq_len), "bf16")
        self.optimizer: Any = torch.optim.AdamW(self.theirs.parameters(), lr=1e-4, fused=True)
        self.losses: dict[str, float] = {}  # of each side's first step

    def steps(self, rows: int) -> dict[str, Callable[[], object]]:
        batch = random_rows(self.spec, rows, self.seq_len)
        ids, labels = (torch.from_numpy(each).to(self.here.device) for each in (batch.input_ids, batch.labels))

        def own(compiled: bool) -> None:
            backend: Any = "inductor" if compiled else None  # as `train --compile` does, or as it is written
            compile_layers(self.model, backend)
            result = self.trainer.step(1, batch)
            if not result.finite:
                raise RuntimeError(f"the loss is {result.loss}, the gradient {result.grad_norm}")
            self.losses.setdefault(f"{OURS}, {rows} rows", result.loss)

        def other() -> None:
            with torch.autocast(self.here.device.type, torch.bfloat16):
                loss = self.theirs(input_ids=ids, labels=labels, shift_labels=labels, use_cache=False).loss
            loss.backward()
            nn.utils.clip_grad_norm_(self.theirs.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.setdefault(f"{THEIRS}, {rows} rows", loss.item())

        # The one that takes most memory first, so that the compiler is not asked where there is no room.
        return {THEIRS: other, OURS: lambda: own(False), COMPILED: lambda: own(True)}

    def taken(self, rows: int, *sides: str) -> dict[str, list[float]] | None:
        """Seconds of each side's steps, or None where memory has no room."""
        steps = {side: step for side, step in self.steps(rows).items() if side in sides}
        try:
            found = {side: lambda step=step: self.here.seconds(step, 2) for side, step in steps.items()}
            return measure.turns(found, self.here.n_turns)
        except torch.OutOfMemoryError as error:
            print(f"{rows} rows: {first_line(error)}", flush=True)
        for one in (self.model, self.theirs):
            if one is not None:
                one.zero_grad(set_to_none=True)
        self.here.free()
        return None

    def growth(self, step: Callable[[], object]) -> int:
        """How far a step raises what is allocated, above all weights and moments."""
        if not self.here.cuda:
            return 0
        self.here.wait()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before

    def share(self, rows: int, taken: list[float], ceiling: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """(of the peak, what goes beside it in a row)."""
        flops = cost(self.spec, seq_len=self.seq_len, batch=rows).training_flops_total
        seconds = statistics.median(taken)
        more = {
            "rows": rows,
            "seq_len": self.seq_len,
            "tokens_per_second": round(rows * self.seq_len / seconds),
            "tflops_per_second": round(flops / seconds / 1e12, 1),
            "share_of_measured_product": round(flops / seconds / ceiling["matmul_flops_per_second"], 4),
        }
        return flops / seconds / ceiling["peak_flops_per_second"], more


def training(here: Here, notes: dict[str, Any], ceiling: Mapping[str, Any]) -> Iterator[Row]:
    """Shares of the peak, ratios to transformers, memory; then ours alone with more rows where that has room."""
    side = Training(here)
    taken, rows = None, 0
    for rows in (2,) if here.tiny else (8, 4, 2, 1):
        taken = side.taken(rows, THEIRS, OURS, COMPILED)
        if taken is not None:
            break
    if taken is None:
        raise RuntimeError("not even one row has room")
    notes |= {
        "convention": "exact-causal: three times the forward pass, of visible pairs",
        "seconds": measure.rounded(taken),
        "first_losses": side.losses,
        "growth_nbytes": {name: side.growth(step) for name, step in side.steps(rows).items()},
        "weights_and_moments_nbytes": 12 * parameters(side.spec).total,
    }
    for name in (OURS, COMPILED, THEIRS):
        share, more = side.share(rows, taken[name], ceiling)
        peak = notes["growth_nbytes"][name] + notes["weights_and_moments_nbytes"]
        least = 0.0 if name == THEIRS else 0.5
        yield measure.row(f"training 1B, {name}: share of peak", share, least=least, peak_nbytes=peak, **more)
    yield measure.row("training 1B, eager, x transformers", measure.speed_ratio(taken), least=1.1, rows=rows)
    grown = notes["growth_nbytes"]
    if grown[THEIRS]:
        yield measure.row("training 1B, memory of a step, x transformers", grown[OURS] / grown[THEIRS], most=0.45)
    ratio = measure.speed_ratio(taken, COMPILED)
    yield measure.row("training 1B, compiled, x transformers eager", ratio, least=1.5, rows=rows)
    if rows >= 8 or here.tiny:
        return
    side.theirs = side.optimizer = None
    here.free()
    for name, wanted in ((OURS, 5.0), (COMPILED, 30.0)):
        torch.compiler.reset()  # or the compiler takes the number of rows for one that changes
        if here.left(wanted) and (found := side.taken(8, name)) is not None:
            share, more = side.share(8, found[name], ceiling)
            yield measure.row(f"training 1B, {name}, 8 rows: share of peak", share, least=0.0, **more)


def within_a_text(model: Transformer, ids: torch.Tensor, step: CompiledStep | None, new: int) -> float:
    """Seconds a token of ours; each token is read, so the device is waited for."""
    writing = Decoding(model, ids, max_new_tokens=new, compiled=step)
    for _ in range(BEFORE):
        next(writing)
    start = time.perf_counter()
    for _ in writing:
        pass
    return (time.perf_counter() - start) / (new - BEFORE)


def by_difference(model: Any, ids: torch.Tensor, new: int) -> float:
    """Seconds a token of theirs."""

    def whole(n: int) -> float:
        start = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)[0, -1].item()
        return time.perf_counter() - start

    first = whole(BEFORE)
    return (whole(new) - first) / (new - BEFORE)


def read_nbytes(here: Here, rows: int, new: int) -> int:
    """What a step reads: all weights once, a tied table once, and the cache that there is on average."""
    spec = specification(here)
    kept = cost(spec, seq_len=PROMPT + new // 2, batch=rows, dtype="bfloat16").cache_nbytes
    return 2 * parameters(spec).total + kept


def decoding(here: Here, notes: dict[str, Any], ceiling: Mapping[str, Any]) -> Iterator[Row]:
    """One text, then eight at once: plain, compiled, transformers'."""
    new, n_turns = 24 if here.tiny else NEW, min(here.n_turns, 2 if here.quick else 5)
    plain = lay_out_for_decoding(ours(here, torch.bfloat16)).eval()
    whole = lay_out_for_decoding(ours(here, torch.bfloat16), compiled=True).eval()
    other = theirs(here, whole, torch.bfloat16).eval()
    ids = torch.randint(0, whole.spec.vocab_size, (SEVERAL, PROMPT), generator=torch.Generator().manual_seed(0))
    ids = ids.to(here.device)
    step = CompiledStep(whole)
    mine, its = within_a_text(plain, ids[:1], None, FEW), by_difference(other, ids[:1], FEW)
    told: dict[str, Any] = {"milliseconds_per_step": {OURS: round(1e3 * mine, 3), THEIRS: round(1e3 * its, 3)}}
    yield measure.row("decoding 1B, eager, a process's first text, x transformers", its / mine, least=1.4, **told)
    for rows, bars in ((1, (1.4, 1.8, 0.7)), (SEVERAL, (0.0, 0.0, 0.0))):
        given, many = ids[:rows], "" if rows == 1 else f", {rows} rows"
        work = {OURS: lambda given=given: within_a_text(plain, given, None, new)}
        work[THEIRS] = lambda given=given: by_difference(other, given, new)
        found: dict[str, Any] = notes.setdefault(f"{rows} rows", {})
        if rows == 1 or here.left(75.0):  # the compiler takes most of this
            try:
                found |= compiled(here, whole, step, given, new)
                work[COMPILED] = lambda given=given: within_a_text(whole, given, step, new)
            except Exception as error:
                traceback.print_exc()
                found["failed"] = first_line(error)
        else:
            found["skipped"] = "compiled: out of time"
        taken = measure.turns(work, n_turns if rows == 1 else 1)
        found["seconds_per_token"] = measure.rounded(taken)
        if rows == 1:
            found["agreeing"] = agreeing(plain, whole, other, given, step if COMPILED in taken else None, new)
        nbytes = read_nbytes(here, rows, new)
        for name, each in taken.items():
            seconds = statistics.median(each)
            yield measure.row(
                f"decoding 1B, {name}{many}: share of memory's peak",
                nbytes / seconds / ceiling["peak_nbytes_per_second"],
                least=bars[2] if name == COMPILED else 0.0,
                tokens_per_second=round(rows / seconds, 1),
                milliseconds_per_step=round(1e3 * seconds, 3),
                share_of_measured_copy=round(nbytes / seconds / ceiling["copy_nbytes_per_second"], 4),
            )
        for name, least in ((OURS, bars[0]), (COMPILED, bars[1])):
            if name in taken:
                how = "eager" if name == OURS else "compiled"
                ratio = measure.speed_ratio(taken, name)
                yield measure.row(f"decoding 1B, {how}{many}, x transformers", ratio, least=least)


def compiled(here: Here, model: Transformer, step: CompiledStep, ids: torch.Tensor, new: int) -> dict[str, Any]:
    """How long the first text takes, and another of the same shape; whether graphs were refused."""
    from torch._dynamo.utils import counters

    found = {}
    for what in ("first_text_s", "second_text_s"):
        start = time.perf_counter()
        generate_ids(model, ids, max_new_tokens=new, compiled=step)
        here.wait()
        found[what] = round(time.perf_counter() - start, 3)
    print(f"compiled decoding: {found}", flush=True)
    return {**found, "graphs_skipped": counters["inductor"]["cudagraph_skips"]}


def agreeing(
    plain: Transformer, whole: Transformer, other: Any, ids: torch.Tensor, step: CompiledStep | None, new: int
) -> dict[str, float]:
    """How far the prompt's logits are from theirs at most, over their largest; shares of 16 tokens that agree."""
    with torch.inference_mode():
        mine, its = plain(ids).logits.float(), other(ids).logits.float()
    length = 16
    said = generate_ids(plain, ids, max_new_tokens=length)
    found = {"logits": float(f"{((mine - its).abs().max() / its.abs().max()).item():.3g}")}
    mask = torch.ones_like(ids)
    its = other.generate(ids, attention_mask=mask, max_new_tokens=length, do_sample=False)[:, ids.shape[1] :]
    found[THEIRS] = (said == its).float().mean().item()
    if step is not None:
        # As long as before, so that no other graph is made.
        again = Decoding(whole, ids, max_new_tokens=new, compiled=step)
        written = [next(again)[0] for _ in range(length)]
        found[COMPILED] = (said[0].cpu() == torch.tensor(written)).float().mean().item()
    return found


class Result:
    """The rows so far, on the screen and in the file."""

    def __init__(self, here: Here, path: Path) -> None:
        import transformers

        self.path, self.start = path, time.perf_counter()
        self.found: dict[str, Any] = {
            "benchmark": "gpu",
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": f"python -m benchmarks.gpu {' '.join(sys.argv[1:])}".strip(),
            "versions": {
                "anyformer": __version__, "torch": torch.__version__, "cuda": torch.version.cuda,
                "transformers": transformers.__version__, "python": sys.version.split()[0]},
            "machine": {
                "processor": name_of(here), "driver": driver() if here.cuda else None,
                "threads": torch.get_num_threads(), "bfloat16": "native",
            },
            "seconds": {},
            "failed": [],
            "notes": {},
            "rows": [],
        }  # fmt: skip

    def add(self, row: Row) -> None:
        self.found["rows"].append(row)
        verdict = "ok" if row["passed"] else "MISSED"
        print(f"{row['name']:60} {row['value']:9.3f}  must be {row['bar']:9} {verdict}", flush=True)
        self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=1, default=str) + "\n", encoding="utf-8")

    def group(self, name: str, here: Here, rows: Callable[[dict[str, Any]], Iterator[Row]]) -> None:
        """Take a group's rows; what it raises is noted."""
        start, notes = time.perf_counter(), self.found["notes"].setdefault(name, {})
        print(f"\n{name} ({start - self.start:.0f} s so far)", flush=True)
        try:
            if not here.left(5.0):
                raise TimeoutError("no time was left")
            for row in rows(notes):
                self.add(row)
        except Exception as error:
            traceback.print_exc()
            self.found["failed"].append({"name": name, "failed": first_line(error)})
        self.found["seconds"][name] = round(time.perf_counter() - start, 1)
        self.write()
        torch.compiler.reset()
        here.free()


def main() -> None:
    start, parser = time.perf_counter(), measure.options(__doc__ or "")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="small shapes, one turn: a rehearsal")
    parser.add_argument("--seconds", type=float, help="after which nothing that takes long is begun")
    parser.add_argument("--groups", help="some alone: ceilings,training,decoding,kernels,vectors,short")
    given = parser.parse_args()
    seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    here = Here(torch.device(given.device), given.tiny, given.quick, start + seconds)
    result = Result(here, given.out / ("gpu-rehearsed.json" if given.tiny else "gpu.json"))
    ceiling: dict[str, Any] = result.found["notes"].setdefault("ceilings", {})
    groups: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
        "ceilings": lambda notes: gpu_kernels.ceilings(here, notes),
        "training": lambda notes: training(here, notes, ceiling),
        "decoding": lambda notes: decoding(here, notes, ceiling),
        "kernels": lambda notes: gpu_kernels.kernels(here, notes),
        "vectors": lambda notes: gpu_kernels.one_vector(here, notes),
        "short": lambda notes: gpu_kernels.short_lengths(here, notes),
    }
    wanted = given.groups.split(",") if given.groups else groups
    for name, rows in groups.items():
        if name in wanted or name == "ceilings":
            result.group(name, here, rows)
    machine = result.found["machine"]
    if (found := ceiling.get("matmul_flops_per_second")) is not None:
        machine["gemm_flops_per_second"] = {"bfloat16": round(found)}
        machine["read_nbytes_per_second"] = round(ceiling["copy_nbytes_per_second"])
    result.write()
    print(f"\nseconds: {result.found['seconds']}, failed: {result.found['failed']}; see {result.path}", flush=True)


if __name__ == "__main__":
    main()
