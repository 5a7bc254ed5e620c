"""An adapter on given weights: trained as a plain loop trains it, gone on with to the bit, read by PEFT and by us alike."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from anyformer.disk.run_layout import ADAPTER, ADAPTER_CONFIG, BASE
from anyformer.errors import AnyformerError, CheckpointError, SpecError, UsageError
from anyformer.families import preset
from anyformer.hub import convert, load, save
from anyformer.hub.saving import Form
from anyformer.layers import Causal, Everything
from anyformer.model import Transformer
from anyformer.recipe import Adam, Constant, Distillation, DropoutSpec, LoRA, PrefixLM, Recipe, RouterTraining, lora_of
from anyformer.recipe import dumps as recipe_text
from anyformer.recipe import loads as recipe_of
from anyformer.resizing import resize, shrink
from anyformer.spec import ModelSpec, TableSpec, Vocab
from anyformer.text.packing import NOT_PREDICTED
from anyformer.training.chosen_recipe import changed
from anyformer.training.run import Job, Run, RunOptions, TrainingResult, train
from anyformer.training.step.adapter import Adapter, targeted
from tests.laws.models import flop_counter, randomised
from tests.laws.tolerance import close
from tests.laws.weights import edited
from tests.training import noisy, replacing
from tests.training.crashing import crashed, hexadecimal
from tests.training.models import VOCAB
from tests.training.texts import text_data

LORA = LoRA(r=3, alpha=6.0, targets=("attention", "up"))
RECIPE = Recipe(
    tokens=8 * 64, batch_tokens=64, seq_len=16, optimizer=Adam(lr=1e-2), schedule=(Constant(),), clip=None, lora=LORA
)
HOW = RunOptions(device=torch.device("cpu"), validations=2, plan=False)
# What stacks, shares, splits or leaves out maps: MLA with experts, a state, norms and tables beside layers, two stacks.
KINDS = [
    "llama2-7b",
    "albert-base",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
    "gemma3-1b",
    "transformer-base",
    "mamba2-130m",
]


def small(name: str, rows: int = VOCAB) -> ModelSpec:
    """Shrunk, with rows for the text's vocabulary."""
    return edited(shrink(preset(name).spec), TableSpec, lambda t: t.but(rows=Vocab(rows)) if t.rows > 8 else t)


SPEC = small("llama2-7b")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "weights"
    save(randomised(SPEC), path, form="anyformer")
    return path


def trained(given: Path, out: Path | None, watcher: Any = None, **options: Any) -> TrainingResult:
    return train(SPEC, RECIPE, text_data(), init=given, out=out, options=HOW, watcher=watcher, **options)


@pytest.fixture(scope="module")
def run(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lora") / "run"
    trained(given, out)
    return out


def plain_losses(model: Transformer, names: list[str], first: dict[str, Tensor], steps: int) -> list[float]:
    """The losses of LoRA written out: W + B A · alpha / r in the place of each W, nothing else trained."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    a = {name: first[name].clone().requires_grad_() for name in names}
    b = {name: torch.zeros(weights[f"{name}.weight"].shape[0], LORA.r, requires_grad=True) for name in names}
    optimizer = torch.optim.Adam([*a.values(), *b.values()], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    feed, losses = text_data().feed(RECIPE), []
    for _ in range(steps):
        rows = next(feed)
        ids, documents, positions, labels = (
            torch.as_tensor(array).long() for array in (rows.input_ids, rows.document, rows.positions, rows.labels)
        )
        adapted = {f"{name}.weight": weights[f"{name}.weight"] + b[name] @ a[name] * 2.0 for name in names}
        options = {"attention_mask": documents, "position_ids": positions}
        logits = functional_call(model, weights | adapted, (ids,), options).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_PREDICTED)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_a_run_makes_the_steps_of_lora_written_out(given: Path) -> None:
    result = trained(given, None)
    other = load(given)[0]
    names = targeted(other, LORA.targets)
    assert {name.rpartition(".")[2] for name in names} == {"q", "k", "v", "o", "up"}
    adapter = Adapter(load(given)[0], LORA, RECIPE.seed)  # what A starts from is drawn
    first = {name: layer.lora_A["default"].weight.detach() for name, layer in adapter.layers.items()}
    assert [step.loss for step in result.steps] == pytest.approx(plain_losses(other, names, first, 8), rel=1e-5)
    assert result.steps[-1].loss < result.steps[0].loss - 0.05


def test_nothing_but_the_targets_moves(given: Path, run: Path) -> None:
    before, after = load(given)[0].state_dict(), load(run)[0].state_dict()
    moved = {name.rpartition(".")[0].rpartition(".")[2] for name in before if not before[name].equal(after[name])}
    assert moved == {"q", "k", "v", "o", "up"}
    assert list(before) == list(after)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_trained_is_what_is_loaded(kind: str, tmp_path: Path) -> None:
    spec = small(kind, noisy.tokenizer().vocab_size if kind == "transformer-base" else VOCAB)
    if kind == "albert-base":
        spec = edited(spec, Everything, lambda _: Causal()).but(heads=spec.heads[:1])
    save(randomised(spec), tmp_path / "given", form="anyformer")
    recipe = RECIPE.but(tokens=2 * 64, lora=LoRA(r=2, alpha=8.0, targets=("all",)))
    data = text_data()
    if spec.encoder is not None:
        data = noisy.text_data()
        recipe = recipe.but(objective=PrefixLM())
    result = train(spec, recipe, data, init=tmp_path / "given", out=tmp_path / "run", options=HOW)
    kept, back = result.model.state_dict(), load(tmp_path / "run")[0].state_dict()
    assert list(kept) == list(back)
    assert all(torch.equal(kept[name], back[name]) for name in kept)
    assert [p.requires_grad for p in result.model.parameters()] == [
        p.requires_grad for p in load(tmp_path / "given")[0].parameters()
    ]
    assert result.steps[1].loss != result.steps[0].loss


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT asks by the old name
def test_peft_puts_a_checkpoint_on_our_class(given: Path, run: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    import anyformer.integrations.transformers  # noqa: F401

    convert(given, tmp_path / "base", form="transformers")
    said = str(convert(run, tmp_path / "adapter", form="transformers"))
    assert f"our class, which `convert {run}/base DIR --to transformers` writes; --merge writes the whole model" in said
    ids = torch.arange(40).reshape(2, 20) % VOCAB
    expected = load(run)[0](ids).logits
    for adapter in (tmp_path / "adapter", run / "checkpoints" / "step-00000008"):
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        bare = base(input_ids=ids).logits
        model: Any = PeftModel.from_pretrained(base, str(adapter)).eval()
        close(model(input_ids=ids).logits, expected)
        assert not torch.allclose(bare, expected, atol=1e-2)
        close(model.merge_and_unload()(input_ids=ids).logits, expected)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", ["llama2-7b", "gemma3-1b", "qwen3-30b-a3b"])
def test_peft_puts_what_is_converted_on_transformers_own_class(name: str, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    spec, given, run, adapter = small(name), *(tmp_path / each for each in ("given", "run", "adapter"))
    save(randomised(spec), given, form="hf")
    train(spec, RECIPE.but(lora=LORA.but(targets=("all",))), text_data(), init=given, out=run, options=HOW)
    (kind,) = json.loads((given / "config.json").read_text())["architectures"]
    assert f"it goes on {kind}; --merge writes the whole model" in str(convert(run, adapter))
    theirs: Any = AutoModelForCausalLM.from_pretrained(given).eval()
    ids = torch.arange(40).reshape(2, 20) % VOCAB
    with torch.no_grad():
        bare, expected = theirs(input_ids=ids).logits, load(run)[0](ids).logits
        adapted: Any = PeftModel.from_pretrained(theirs, str(adapter)).eval()
        close(adapted(input_ids=ids).logits, expected)
    assert not torch.allclose(bare, expected, atol=1e-2)


def test_where_a_class_holds_maps_otherwise_an_adapter_stays_ours(tmp_path: Path) -> None:
    """GPT-2's has one matrix for queries, keys and values."""
    spec, run = small("gpt2"), tmp_path / "run"
    save(randomised(spec), tmp_path / "given", form="hf")
    train(spec, RECIPE, text_data(), init=tmp_path / "given", out=run, options=HOW)
    why = r"GPT2LMHeadModel does not hold stack\S+\.[qkv]\.weight as a matrix of its own"
    assert re.search(rf"goes on our class, .* \({why}\)", str(convert(run, tmp_path / "adapter")))
    own = run / "checkpoints" / "step-00000008"
    for name in (ADAPTER, ADAPTER_CONFIG):
        assert (tmp_path / "adapter" / name).read_bytes() == (own / name).read_bytes()
    with pytest.raises(SpecError, match=f"{why}; leave --to and --class out, or give --merge"):
        convert(run, tmp_path / "other", form="hf")
    assert not (tmp_path / "other").exists()


def test_merged_weights_are_written(run: Path, tmp_path: Path) -> None:
    assert "is a Hugging Face directory" in str(convert(run, tmp_path / "hf", merge=True))
    kept, back = load(run)[0].state_dict(), load(tmp_path / "hf")[0].state_dict()
    assert all(torch.equal(kept[name], back[name]) for name in kept)


@pytest.mark.parametrize("at", [1, 3, 6])  # before the first checkpoint too
def test_a_run_that_stopped_goes_on_to_the_bit(given: Path, at: int, tmp_path: Path) -> None:
    """Its base is its own: what the weights it began from have become since changes nothing."""
    recipe = RECIPE.but(dropout=DropoutSpec(residual=0.1))
    begun = tmp_path / "begun"
    save(load(given)[0], begun, form="anyformer")
    options: dict[str, Any] = {"init": begun, "options": RunOptions(device=HOW.device, plan=False, save_every=2)}
    whole = train(SPEC, recipe, text_data(), **options)
    crashed(at, SPEC, recipe, text_data(), out=tmp_path / "run", **options)
    (begun / "model.safetensors").unlink()
    save(randomised(SPEC, 5), tmp_path / "other", form="anyformer")
    (tmp_path / "other" / "model.safetensors").rename(begun / "model.safetensors")
    again = train(SPEC, recipe, text_data(), out=tmp_path / "run", **options)
    assert hexadecimal(again) == hexadecimal(whole)
    mine, other = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert again.evaluation == whole.evaluation


@pytest.mark.parametrize("named", ["begun", "../here/begun", None])
@pytest.mark.parametrize("at", [1, 3])
def test_what_a_run_was_given_it_needs_no_more(given: Path, at: int, named: str | None, tmp_path: Path) -> None:
    """Moved away, under its former name, spelled otherwise, or none; what is saved names what it was begun with."""
    tmp_path = tmp_path / "here"
    begun, how = tmp_path / "begun", RunOptions(device=HOW.device, plan=False, save_every=2)
    save(load(given)[0], begun, form="anyformer")
    whole = train(SPEC, RECIPE, text_data(), init=begun, options=how)
    crashed(at, SPEC, RECIPE, text_data(), init=begun, out=tmp_path / "run", options=how)
    begun.rename(tmp_path / "moved")
    init = None if named is None else tmp_path / named
    with pytest.raises(CheckpointError, match="leave --init out to go on with the run's own weights"):
        train(SPEC, RECIPE, text_data(), init=tmp_path / "moved", out=tmp_path / "run", options=how)
    again = train(SPEC, RECIPE, text_data(), init=init, out=tmp_path / "run", options=how)
    assert hexadecimal(again) == hexadecimal(whole)
    config = (tmp_path / "run" / "checkpoints" / "step-00000008" / ADAPTER_CONFIG).read_text()
    assert json.loads(config)["base_model_name_or_path"] == str(begun)


def test_a_checkpoint_holds_the_adapter_alone(run: Path) -> None:
    held = {path.name for path in (run / "checkpoints" / "step-00000008").iterdir()}
    assert {ADAPTER, ADAPTER_CONFIG} < held
    assert "model.safetensors" not in held
    said = json.loads((run / "checkpoints" / "step-00000008" / ADAPTER_CONFIG).read_text())
    assert (said["r"], said["lora_alpha"], said["peft_type"], said["task_type"]) == (3, 6.0, "LORA", "CAUSAL_LM")


@pytest.mark.parametrize("file", [f"{BASE}/model.safetensors", f"checkpoints/step-00000008/{ADAPTER}", "recipe.yaml"])
def test_a_byte_that_changes_is_seen(given: Path, file: str, tmp_path: Path) -> None:
    trained(given, tmp_path / "run")
    path = tmp_path / "run" / file
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    for act in (lambda: load(tmp_path / "run"), lambda: trained(given, tmp_path / "run")):
        with pytest.raises(CheckpointError, match=r"corrupted or edited"):
            act()


def test_a_file_beside_the_base_is_refused(given: Path, tmp_path: Path) -> None:
    trained(given, tmp_path / "run")
    (tmp_path / "run" / BASE / "other.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the files that were written here"):
        load(tmp_path / "run")


def test_a_plan_says_what_an_adapter_leaves_as_it_is(given: Path) -> None:
    """An end of answers that the base never wrote is a row of a table that no adapter moves."""
    run = Run(Job(SPEC, RECIPE, text_data(), init=given), HOW)
    (line,) = (each for each in run.planned.lines() if each.startswith("an adapter of "))
    assert "; embeddings, heads stay as they are, so tokens that the weights never met" in line


def test_flops_are_fewer_as_pytorch_counts_them(tmp_path: Path) -> None:
    """The share that training all weights takes; below the first adapted map no gradient goes, one layer in twelve."""
    spec, adapted = resize(small("gpt2"), n_layers=12), RECIPE.but(lora=LoRA(r=2, targets=("all",)))
    save(randomised(spec), tmp_path / "given", form="anyformer")
    said, counted = [], []
    for recipe in (adapted, adapted.but(lora=None)):
        run = Run(Job(spec, recipe, text_data(), init=tmp_path / "given"), HOW)
        said.append(run.flops_per_token)
        with flop_counter() as counter:
            run.trainer.gradients(1, next(run.feed))
        counted.append(counter.get_total_flops())
    assert said[0] / said[1] == pytest.approx(counted[0] / counted[1], rel=0.03)
    assert counted[0] < 0.8 * counted[1]


@pytest.mark.parametrize(
    ("text", "lora"),
    [
        ("r=16,alpha=32,targets=attention", LoRA()),
        ("r=4", LoRA(r=4)),
        ("targets=q,v,alpha=8", LoRA(alpha=8.0, targets=("q", "v"))),
        ("alpha=0.5,targets=feed-forward,q,r=2", LoRA(r=2, alpha=0.5, targets=("feed-forward", "q"))),
    ],
)
def test_what_is_written_is_read(text: str, lora: LoRA) -> None:
    assert lora_of(text) == lora
    recipe = RECIPE.but(lora=lora)
    assert recipe_of(recipe_text(recipe)) == recipe


def test_what_is_not_written_stays_as_the_recipe_has_it() -> None:
    recipe = RECIPE.but(lora=LoRA(alpha=8, targets=("all",)), distillation=Distillation(teacher="a", weight=0.5))
    said = changed(recipe, {"lora": "r=4", "distillation": "b,temperature=2"})
    assert said.lora == LoRA(r=4, alpha=8, targets=("all",))
    assert said.distillation == Distillation(teacher="b", weight=0.5, temperature=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank=4", "'rank=4' is none of its options"),
        ("r=four", "r = 'four' is no number"),
        ("r=4,5", "r = '4,5' is no number"),
        ("r=0", "r"),
        ("alpha=nan", "alpha"),
        ("q,v", "'q' is none of its options"),
        ("r=4,r=5", "r is given twice; give it once"),
        ("targets=", "is none of its options"),
        ("", "is none of its options"),
    ],
)
def test_what_says_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises((UsageError, SpecError), match=says):
        lora_of(text)


def test_what_cannot_be_adapted_is_refused_before_anything_is_written(
    given: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(kind: type[AnyformerError], says: str, recipe: Recipe = RECIPE, **options: Any) -> None:
        with pytest.raises(kind, match=says):
            train(SPEC, recipe, text_data(), out=tmp_path / "run", options=HOW, **{"init": given, **options})
        assert not (tmp_path / "run").exists()

    refused(UsageError, r"put on given weights; name their directory \(--init\)", init=None)
    refused(
        UsageError,
        "no linear map is meant by targets=query; there are all, attention, feed-forward, q, k, v, o, gate, up, down",
        RECIPE.but(lora=LoRA(targets=("query",))),
    )
    refused(UsageError, "no linear map is meant by targets=table", RECIPE.but(lora=LoRA(targets=("table",))))
    save(randomised(SPEC.but(heads=())), tmp_path / "headless", form="anyformer")
    says = r"headless lacks heads\.0\..*, which no adapter \(--lora\) trains; train without --lora first"
    refused(UsageError, says, init=tmp_path / "headless")
    shutil.rmtree(tmp_path / "headless")
    with pytest.raises(SpecError, match="an adapter leaves as they are"):
        RECIPE.but(router=RouterTraining(correction_speed=1e-3))
    with pytest.raises(UsageError, match="has no adapter to merge; leave --merge out"):
        convert(given, tmp_path / "merged", merge=True)
    targets: tuple[tuple[Path, Form | None], ...] = ((tmp_path / "x.gguf", None), (tmp_path / "x", "anyformer"))
    for target, form in targets:
        with pytest.raises(UsageError, match="goes into its weights by --merge"):
            convert(run, target, form=form)
    monkeypatch.setitem(sys.modules, "peft", None)
    refused(UsageError, r"needs the package peft; pip install 'anyformer\[peft\]'")
    assert load(run)[0] is not None  # what was trained is read without it
    assert sorted(path.name for path in tmp_path.iterdir()) == []


def test_a_directory_of_another_run_is_refused_by_its_field(given: Path, tmp_path: Path) -> None:
    """Also one without a base, or of another model than the base: nothing is read of it first."""
    plain, out = RECIPE.but(lora=None, tokens=64), tmp_path / "run"
    for recipe, other, spec, says in (
        (plain, RECIPE, SPEC, r"run holds a run of another recipe: lora is None there and LoRA"),
        (
            RECIPE.but(tokens=64),
            RECIPE,
            resize(SPEC, vocab_size=VOCAB + 1),
            "run holds a run of another spec: .*rows is",
        ),
        (RECIPE.but(tokens=64), RECIPE.but(lora=LoRA(r=5)), SPEC, r"another recipe: lora\.r is 3 there and 5 here"),
    ):
        train(SPEC, recipe, text_data(), init=given, out=out, options=HOW)
        with pytest.raises(CheckpointError, match=says):
            train(spec, other, text_data(), init=given, out=out, options=HOW)
        shutil.rmtree(out)
    (out / BASE).mkdir(parents=True)
    with pytest.raises(UsageError, match="run holds no run but other things, such as base"):
        train(SPEC, RECIPE, text_data(), init=given, out=out, options=HOW)


def test_an_objective_with_a_model_beside_is_refused() -> None:
    with pytest.raises(UsageError, match="trains a second model from the start beside this one; leave --lora out"):
        replacing.trainer(lora=LoRA())
