"""Runs with a generator: gone on with to the bit, judged again, exported both; and what their baseline is."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import anyformer as af
from anyformer.amounts import count
from anyformer.errors import CheckpointError
from anyformer.hub import convert, load, load_auxiliary, load_spec
from anyformer.recipe import DropoutSpec, ReplacedTokens
from anyformer.text import NOT_PREDICTED
from anyformer.training.checkpoint.listing import list_runs
from anyformer.training.objectives.objective import LossContext, Losses, objective_of
from anyformer.training.run import Job, Run, RunOptions, TrainingResult, train
from anyformer.training.run.evaluation import evaluate
from tests.training import noisy
from tests.training.replacing import recipe, spec

FILES = ("model.safetensors", "companion.safetensors", "optimizer.safetensors", "random.safetensors")
HOW = RunOptions(device=torch.device("cpu"), save_every=2, validations=2, keep_last=9, plan=False)
RECIPE = recipe(ReplacedTokens(embeddings="disentangled"), dropout=DropoutSpec(residual=0.1), clip=1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("replaced") / "run"
    return out, train(spec(), RECIPE, noisy.text_data(), out=out, options=HOW)


def last(out: Path) -> Path:
    return out / "checkpoints" / f"step-{RECIPE.steps:08d}"


def told(out: Path) -> list[dict[str, object]]:
    """The metrics but for times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]


def test_gone_on_with_to_the_bit(run: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    out, again = run[0], tmp_path / "again"
    shutil.copytree(out, again)
    for path in (again / "checkpoints").iterdir():
        if int(path.name.split("-")[1]) > 4:
            shutil.rmtree(path)
    torch.manual_seed(1)
    train(spec(), RECIPE, noisy.text_data(), out=again, options=HOW)
    assert told(again) == told(out)
    for name in FILES:
        assert (last(again) / name).read_bytes() == (last(out) / name).read_bytes(), name


def test_other_runs_have_no_such_file(tmp_path: Path) -> None:
    from anyformer.recipe import MaskedLM
    from anyformer.training.objectives.replaced.loss import generator_for

    out = tmp_path / "run"
    train(
        generator_for(spec(), 1.0),
        recipe().but(objective=MaskedLM(), tokens=128),
        noisy.text_data(),
        out=out,
        options=HOW,
    )
    assert not list(out.rglob("companion*"))
    with pytest.raises(CheckpointError, match=r"holds nothing that was trained beside a model: .*; give the run"):
        load_auxiliary(out)


def test_both_are_read_back(run: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    out, result = run
    model, tokenizer = load(out)
    generator, _ = load(out / "companion.yaml")
    assert tokenizer is not None
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    held = load_file(last(out) / "companion.safetensors")
    assert {name: id(t) for name, t in held.items()}.keys() == generator.state_dict().keys()
    for each in (generator, load_auxiliary(out), load_auxiliary(last(out))):
        for name, tensor in each.state_dict().items():
            assert torch.equal(held[name], tensor), name
    assert load_spec(out / "companion.yaml") == generator.spec
    assert not torch.equal(
        load_file(out / "checkpoints" / "step-00000002" / "companion.safetensors")["heads.0.bias"], held["heads.0.bias"]
    )
    convert(out, tmp_path / "d")
    convert(out / "companion.yaml", tmp_path / "g")
    architectures = [json.loads((tmp_path / name / "config.json").read_text())["architectures"] for name in "dg"]
    assert architectures == [["ElectraForPreTraining"], ["ElectraForMaskedLM"]]
    ids = torch.tensor([tokenizer.encode("The cat sits on a roof.")])
    for name, own in (("d", model), ("g", generator)):
        assert torch.equal(load(tmp_path / name)[0](ids).logits, own(ids).logits)
        assert (tmp_path / name / "tokenizer.json").is_file()


def test_judged_again(run: tuple[Path, TrainingResult]) -> None:
    """What was trained is enough to say the same of the same text; each look is at the same replacements."""
    out, result = run
    model, generator = load(out)[0], load_auxiliary(out)
    objective, validation = objective_of(RECIPE.objective, model.spec), noisy.text_data().validation(RECIPE)
    assert validation is not None
    assert result.evaluation is not None
    found = [evaluate(model, objective, validation, auxiliary=generator, batch_tokens=n) for n in (4096, 4096, 32)]
    assert found[0] == found[1] == result.evaluation
    assert found[2].loss == pytest.approx(found[0].loss, rel=1e-6)
    assert found[2].class_counts == found[0].class_counts
    assert evaluate(model, objective, validation, most_tokens=10**6, auxiliary=generator).loss == pytest.approx(
        found[0].loss
    )
    assert found[0].parts.keys() == {"generator", "replaced"}


def test_a_text_is_read_beside_the_data_that_it_is_inspected_on(
    run: tuple[Path, TrainingResult], tmp_path: Path
) -> None:
    """The generator is in the run's directory for both; for the text it was asked for, as of a model without one."""
    (tmp_path / "text.txt").write_text("\n".join(noisy.sentences(8, 2)))
    found = af.inspect(run[0], tmp_path / "text.txt", text="The cat sits on a roof.", tokens=64)
    assert found.objective == "ReplacedTokens"


def test_the_baseline_is_the_frequency_of_what_was_replaced(run: tuple[Path, TrainingResult]) -> None:
    out, result = run
    model, generator = load(out)[0], load_auxiliary(out)
    objective, validation = objective_of(RECIPE.objective, model.spec), noisy.text_data().validation(RECIPE)
    assert validation is not None
    assert result.evaluation is not None
    device, judged, fakes, hidden = torch.device("cpu"), 0, 0, 0
    way = LossContext(model, model.head(), device, auxiliary=LossContext(generator, generator.head(), device))
    for rows, _ in validation.batches(4096):
        losses: Losses = objective(way, rows)
        assert losses.classes is not None
        judged += int((rows.labels != NOT_PREDICTED).sum())
        fakes += int((losses.classes == 1).sum())
        hidden += int(rows.hidden.sum())
    assert 0 < fakes <= hidden < judged
    p = fakes / judged
    assert result.unigram_loss == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-9)
    assert result.evaluation.class_counts == (judged - fakes, fakes)
    assert result.evaluation.parts["replaced"].labels == fakes
    assert result.evaluation.parts["generator"].labels == hidden
    assert result.steps[-1].parts is not None
    assert result.steps[-1].parts.keys() == {"generator", "replaced"}


def test_a_damaged_generator_is_refused(run: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(run[0], again)
    file = last(again) / "companion.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"companion.safetensors is corrupted"):
        load_auxiliary(again)
    with pytest.raises(CheckpointError, match=r"companion.safetensors is corrupted"):
        train(spec(), RECIPE, noisy.text_data(), out=again, options=HOW)


def test_the_plan_counts_both(run: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    out, result = run
    plan = Run(Job(spec(), RECIPE, noisy.text_data(), tmp_path / "new"), HOW).plan()
    held = sum(t.numel() for t in load_file(last(out) / "companion.safetensors").values())
    assert plan.n_beside == held  # disentangled: nothing is one
    assert plan.n_params == af.spec.parameters(spec()).total == result.n_params
    assert f"{count(held)} beside the model" in plan.lines()[0]
    written = sum((last(out) / name).stat().st_size for name in FILES[:3])
    assert written < plan.disk_nbytes / (HOW.keep_last + 2) * 1.2
    assert written > plan.disk_nbytes / (HOW.keep_last + 2) * 0.8
    assert not (tmp_path / "new").exists()
    (listed,) = list_runs(out.parent)
    assert (listed.state, listed.n_params) == ("finished", result.n_params)


def test_weights_to_start_from_are_the_models(run: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    """A generator whose tables are followed starts where the given ones are."""
    short = RECIPE.but(tokens=128, optimizer=RECIPE.optimizer.but(lr=1e-12))
    begun = train(spec(), short, noisy.text_data(), init=run[0], out=tmp_path / "new", options=HOW)
    given = load(run[0])[0].state_dict()
    for name, tensor in given.items():
        assert torch.allclose(begun.model.state_dict()[name], tensor, atol=1e-7), name
    table = load_auxiliary(tmp_path / "new").state_dict()["shared.tokens.weight"]
    assert torch.allclose(table, given["shared.tokens.weight"], atol=1e-7)
