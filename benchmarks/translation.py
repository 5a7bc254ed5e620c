"""German captions into English: the architecture of 2017, small, trained by ours and by `torch.nn.Transformer`.

    python -m benchmarks.translation ../shared/material/multi30k runs/multi30k --side ours
    python -m benchmarks.translation ../shared/material/multi30k runs/multi30k --side torch.nn
    python -m benchmarks.translation ../shared/material/multi30k runs/multi30k --speed
    python -m benchmarks.translation ../shared/material/multi30k runs/multi30k --score

Both start from the same weights and see the same batches by `examples/multi30k/recipe.yaml`: optimiser, schedule,
smoothing and dropout's rates are the same, only dropout's draws differ. At each look at the validation pairs the weights are
kept if they do best there. `--speed` times a few steps of both in turns, on the same batches, by the wall clock and on all
cores: long runs one after the other say little where others use the machine too. `--score` then translates the 1,000 test
sentences, beams of 4, once for each side, both through our beam search (torch.nn has none), and writes
`results/translation.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from anyformer import build, load, load_spec
from anyformer.generation import BeamSearch, lay_out_for_decoding
from anyformer.inference.writing import bleu, translate
from anyformer.model import Transformer
from anyformer.recipe import Recipe, read
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, Tokenizer, read_parallel
from anyformer.training.objectives.objective import objective_of
from anyformer.training.objectives.seq2seq.data import PairData
from anyformer.training.run import RunOptions, train
from anyformer.training.run.progress import live_view
from anyformer.training.step import Trainer
from anyformer.training.step.optimizer import optimizer_of, ways_of
from benchmarks import measure
from benchmarks.torch_transformer import TorchTransformer, put, taken

EXAMPLE = Path(__file__).parent.parent / "examples" / "multi30k"
BEAMS, LENGTH_PENALTY, LOOKS, BAR = 4, 0.6, 8, 33.0
WARM, TIMED = 3, 40  # steps of either side


def given(material: Path) -> tuple[ModelSpec, Recipe, PairData]:
    """Return architecture, recipe and pairs; the vocabulary is learned from the training pairs alone."""
    spec, recipe = load_spec(EXAMPLE / "model.yaml"), read(EXAMPLE / "recipe.yaml")
    pairs = read_parallel(material / "train.de.gz", material / "train.en.gz")
    unseen = read_parallel(material / "val.de.gz", material / "val.en.gz")
    return spec, recipe, PairData(pairs, unseen, Tokenizer.train(pairs.texts(), spec.vocab_size))


def train_ours(material: Path, out: Path) -> None:
    """Train as `anyformer train` does, and say where the best checkpoint is."""
    spec, recipe, data = given(material)
    begun = time.process_time()
    options = RunOptions(device=torch.device("cpu"), validations=LOOKS)
    result = train(spec, recipe, data, out=out / "ours", options=options, watcher=live_view(), name="multi30k")
    assert result.best is not None
    figures = {"seconds": result.seconds, "cpu_seconds": time.process_time() - begun, "tokens": result.tokens}
    (out / "ours.json").write_text(json.dumps({**figures, "best": str(result.best)}), encoding="utf-8")


class Theirs:
    """torch.nn's modules, from the weights of ours, trained as the recipe says."""

    def __init__(self, spec: ModelSpec, recipe: Recipe, ours: Transformer) -> None:
        self.recipe, self.rates = recipe, recipe.learning_rates(spec.stack.d_model)
        self.model = TorchTransformer(spec.vocab_size, recipe.dropout.residual)
        put(dict(ours.named_parameters()), self.model)
        self.optimizer = optimizer_like_ours(self.model, ours, recipe)

    def step(self, number: int, rows: Any) -> None:
        """Make update `number`, counted from 1."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates(number)
        loss_of(self.model.train(), rows, self.recipe.label_smoothing).backward()
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


def train_theirs(material: Path, out: Path) -> None:
    """Train torch.nn's modules, and keep what did best on the validation pairs as a model of ours."""
    spec, recipe, data = given(material)
    torch.manual_seed(recipe.seed)
    begun, ours = time.process_time(), build(spec, recipe.seed)
    theirs, feed, steps = Theirs(spec, recipe, ours), data.feed(recipe), recipe.steps
    check_equal(theirs.model, ours, next(data.feed(recipe)))
    seconds, tokens, best = 0.0, 0, float("inf")
    for step in range(1, steps + 1):
        start = time.perf_counter()
        rows = next(feed)
        theirs.step(step, rows)
        seconds += time.perf_counter() - start
        tokens += int((rows.labels != NOT_PREDICTED).sum())
        if step % (steps // LOOKS) == 0 or step == steps:
            found = validation_loss(theirs.model, data, recipe)
            print(f"step {step:,}/{steps:,}  validation {found:.4f}  {tokens / seconds:,.0f} tokens/s", flush=True)
            if found < best:
                best = found
                save_file(taken(theirs.model), out / "theirs.safetensors")
    figures = {"seconds": seconds, "cpu_seconds": time.process_time() - begun, "tokens": tokens, "validation": best}
    (out / "theirs.json").write_text(json.dumps(figures), encoding="utf-8")


def speed(material: Path, out: Path) -> None:
    """Time steps of both in turns."""
    spec, recipe, data = given(material)
    torch.manual_seed(recipe.seed)
    model = build(spec, recipe.seed)
    theirs = Theirs(spec, recipe, model)
    mine = Trainer(model, recipe, objective_of(recipe.objective, spec))
    taken: dict[str, list[float]] = {"ours": [], "torch.nn": []}
    feed = data.feed(recipe)
    for number in range(1, WARM + TIMED + 1):
        rows = next(feed)
        for side, trainer in (("ours", mine), ("torch.nn", theirs)):
            start = time.perf_counter()
            trainer.step(number, rows)
            taken[side].append(time.perf_counter() - start)
    timed = {side: each[WARM:] for side, each in taken.items()}
    minutes = {side: sum(each) / len(each) * recipe.steps / 60 for side, each in timed.items()}
    ratio = measure.speed_ratio(timed, theirs="torch.nn")
    print(f"{ratio:.2f} times as fast; all {recipe.steps:,} steps would take {minutes} minutes", flush=True)
    figures = {"ratio": ratio, "minutes": minutes, "seconds": measure.rounded(timed)}
    (out / "speed.json").write_text(json.dumps(figures), encoding="utf-8")


def optimizer_like_ours(model: TorchTransformer, ours: Transformer, recipe: Recipe) -> torch.optim.Optimizer:
    """Return AdamW by the recipe: decay on matrices alone, as ours has it."""
    like = optimizer_of(recipe.optimizer, ours, ways_of(ours))
    matrices = [p for p in model.parameters() if p.dim() == 2 and p is not model.table]
    others = [p for p in model.parameters() if p.dim() != 2 or p is model.table]
    decays = [group["weight_decay"] for group in like.param_groups]
    groups = [{"params": each, "weight_decay": decay} for each, decay in zip((matrices, others), decays, strict=True)]
    first = like.param_groups[0]
    return torch.optim.AdamW(groups, lr=first["lr"], betas=first["betas"], eps=first["eps"], fused=True)


def inputs(rows: Any) -> tuple[Tensor, ...]:
    """Return what torch.nn's model takes."""
    return tuple(map(torch.from_numpy, (rows.source_ids, rows.source_mask, rows.target_ids, rows.target_mask)))


def loss_of(model: TorchTransformer, rows: Any, smoothing: float = 0.0) -> Tensor:
    """Return the mean over all labels, nats."""
    logits, labels = model(*inputs(rows)).flatten(0, 1), torch.from_numpy(rows.labels).flatten()
    return F.cross_entropy(logits, labels, ignore_index=NOT_PREDICTED, label_smoothing=smoothing)


def validation_loss(model: TorchTransformer, data: PairData, recipe: Recipe) -> float:
    """Return nats a token of the validation pairs."""
    validation, nats, n = data.validation(recipe), 0.0, 0
    assert validation is not None
    with torch.no_grad():
        for rows, _ in validation.batches(recipe.batch_tokens):
            labels = int((rows.labels != NOT_PREDICTED).sum())
            nats, n = nats + float(loss_of(model.eval(), rows)) * labels, n + labels
    return nats / n


def check_equal(theirs: TorchTransformer, ours: Any, rows: Any) -> None:
    """Print how far the losses of the two are apart before training, and stop if it is more than rounding."""
    source, source_real, target, target_real = inputs(rows)
    with torch.no_grad():
        mine = ours(source, source_real.long(), decoder_input_ids=target, decoder_attention_mask=target_real.long())
        labels = torch.from_numpy(rows.labels)
        loss = float(F.cross_entropy(mine.logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_PREDICTED))
        other = float(loss_of(theirs.eval(), rows))
    print(f"before training: {loss:.6f} ours, {other:.6f} torch.nn", flush=True)
    assert abs(loss - other) < 1e-5 * loss


def score(material: Path, out: Path, results: Path) -> None:
    """Translate the test sentences by both and write the result."""
    test = read_parallel(material / "test_2016_flickr.de.gz", material / "test_2016_flickr.en.gz")
    sources, references = [pair[0] for pair in test.pairs], [pair[1] for pair in test.pairs]
    mine, theirs = (json.loads((out / f"{side}.json").read_text(encoding="utf-8")) for side in ("ours", "theirs"))
    model, tokenizer = load(mine.pop("best"))
    assert tokenizer is not None
    rows, samples = [], {}
    for side, figures in (("ours", mine), ("torch.nn", theirs)):
        if side == "torch.nn":
            model = build(model.spec)
            model.load_state_dict(load_file(out / "theirs.safetensors"))
        found = translate(lay_out_for_decoding(model), tokenizer, sources, search=BeamSearch(BEAMS, LENGTH_PENALTY))
        result = bleu(found, references)
        bar = {"least": BAR} if side == "ours" else {"least": 0.0}
        rows.append(measure.row(f"{side}: BLEU", result.score, **bar, signature=result.signature, **figures))
        samples[side] = found[:5]
    timed = json.loads((out / "speed.json").read_text(encoding="utf-8"))
    rows.append(measure.row("ours: as fast as torch.nn", timed["ratio"], least=0.0, **timed))
    notes = {"samples": {"source": sources[:5], "reference": references[:5], **samples}}
    measure.record("translation", results, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Translation by ours and by torch.nn.Transformer.")
    parser.add_argument("material", type=Path, help="directory of Multi30k")
    parser.add_argument("runs", type=Path, help="directory of the two runs")
    parser.add_argument("--side", choices=["ours", "torch.nn"], help="train this one")
    parser.add_argument("--speed", action="store_true", help="time steps of both in turns")
    parser.add_argument("--score", action="store_true", help="translate the test sentences by both")
    parser.add_argument("--out", type=Path, default=measure.RESULTS, help="directory of the JSON result")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    if chosen.side is not None:
        (train_ours if chosen.side == "ours" else train_theirs)(chosen.material, chosen.runs)
    if chosen.speed:
        speed(chosen.material, chosen.runs)
    if chosen.score:
        score(chosen.material, chosen.runs, chosen.out)


if __name__ == "__main__":
    main()
