"""Every specification in transformers: what its classes give is what ours give, by its own generation, files and trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

import anyformer as af
from anyformer.cli.convert import command
from anyformer.errors import AnyformerError, CacheError, InputError, SpecError, UsageError
from anyformer.generation import generate_ids
from anyformer.hub import convert, load, save
from anyformer.integrations.transformers import (
    AnyformerCache,
    AnyformerConfig,
    AnyformerForCausalLM,
    AnyformerForMaskedLM,
    AnyformerForSeq2SeqLM,
    AnyformerForSequenceClassification,
)
from anyformer.integrations.transformers.cache import CACHE
from anyformer.resizing import resize
from anyformer.text import Tokenizer
from tests.integrations.models import (
    BOTH,
    CLASSES,
    HYBRID,
    MASKED,
    OWN,
    START,
    STATE,
    WINDOWS,
    WRITERS,
    config_of,
    spec_of,
    start_for,
    theirs_and_ours,
)
from tests.laws.models import ids_for
from tests.laws.tolerance import close

NEW = 9
# transformers' own of its own, which PEFT and its trainers still say.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def written(theirs: Any, ids: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """The new ids of greedy generation, unless options say otherwise."""
    mask = torch.ones_like(ids) if mask is None else mask
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None} | options
    return theirs.generate(ids, attention_mask=mask, **options)[:, -options["max_new_tokens"] :]


@pytest.mark.parametrize("name", [*WRITERS, MASKED])
def test_logits_and_first_weights_are_ours(name: str) -> None:
    theirs, ours = theirs_and_ours(name)
    ids = ids_for(ours.spec, 2, 11)
    more = {"decoder_input_ids": ids[:, :7]} if ours.encoder is not None else {}
    close(theirs(ids, **more).logits, ours(ids, **more).outputs[theirs.head.spec.name])
    theirs.set_attn_implementation("eager")
    close(theirs(ids, **more).logits, ours(ids, **more, kernel="eager").outputs[theirs.head.spec.name])
    torch.manual_seed(3)
    fresh = CLASSES.get(name, AnyformerForCausalLM)(config_of(ours.spec))
    for key, value in af.build(ours.spec, seed=3).state_dict().items():
        assert torch.equal(fresh.inner.state_dict()[key], value), key


@pytest.mark.parametrize("name", WRITERS)
def test_generation_is_ours_cached_padded_and_by_beams(name: str) -> None:
    theirs, ours = theirs_and_ours(name)
    ids = ids_for(ours.spec, 2, 10)
    start: dict[str, Any] = dict(start_for(ours, 2))
    expected = generate_ids(ours, ids, max_new_tokens=NEW, **start)
    assert torch.equal(written(theirs, ids), expected)
    assert torch.equal(written(theirs, ids, use_cache=False), expected)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    first = {key: value[:1] for key, value in start.items()}
    alone = generate_ids(ours, ids[:1, 4:], max_new_tokens=NEW, **first)
    assert torch.equal(written(theirs, ids, mask), torch.cat((alone, expected[1:])))
    beams = {"num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(written(theirs, ids, mask, **beams), written(theirs, ids, mask, **beams, use_cache=False))
    torch.manual_seed(0)
    drawn = written(theirs, ids, do_sample=True, num_return_sequences=3)
    torch.manual_seed(0)
    assert torch.equal(drawn, written(theirs, ids, do_sample=True, num_return_sequences=3, use_cache=False))


@pytest.mark.parametrize("name", [OWN, WINDOWS])
def test_assisted_generation_is_greedy(name: str) -> None:
    """Tokens that were guessed wrong are taken back from the cache, of rings too."""
    theirs, ours = theirs_and_ours(name)
    ids, (helper, _) = ids_for(ours.spec, 1, 12), theirs_and_ours(name, seed=5)
    with torch.no_grad():  # right now and then
        for mine, its in zip(helper.parameters(), theirs.parameters(), strict=True):
            mine.copy_(0.97 * its + 0.03 * mine)
    expected = generate_ids(ours, ids, max_new_tokens=20)
    assert torch.equal(written(theirs, ids, assistant_model=helper, max_new_tokens=20), expected)
    assert torch.equal(written(theirs, ids, prompt_lookup_num_tokens=3, max_new_tokens=20), expected)


@pytest.mark.parametrize("name", [OWN, STATE])
def test_a_returned_cache_goes_on(name: str) -> None:
    theirs, ours = theirs_and_ours(name)
    ids = ids_for(ours.spec, 2, 10)
    with torch.no_grad():
        first = theirs(ids[:, :6], use_cache=True)
        rest = theirs(ids[:, 6:], **{CACHE: first[CACHE]})
        close(torch.cat((first.logits, rest.logits), 1), ours(ids).logits)
    assert isinstance(rest[CACHE], AnyformerCache)
    assert rest[CACHE].get_seq_length() == 10


@pytest.mark.parametrize("name", [OWN, BOTH, MASKED])
def test_labels_and_recomputed_layers(name: str) -> None:
    theirs, ours = theirs_and_ours(name)
    ids = ids_for(ours.spec, 2, 10)
    labels = ids.clone()
    labels[0, :3] = -100
    theirs.train()
    loss = theirs(ids, labels=labels).loss
    read = F.pad(labels[:, :-1].masked_fill(labels[:, :-1] == -100, 0), (1, 0), value=START)
    more = {"decoder_input_ids": read} if ours.encoder is not None else {}
    close(loss, ours(ids, labels=labels, heads=[theirs.head.spec.name], **more).loss)
    loss.backward()
    gradients = {key: p.grad.clone() for key, p in theirs.named_parameters() if p.grad is not None}
    theirs.zero_grad()
    theirs.activation_checkpointing_enable()
    assert theirs.is_activation_checkpointing
    theirs(ids, labels=labels).loss.backward()
    for key, p in theirs.named_parameters():
        assert key not in gradients or torch.equal(p.grad, gradients[key]), key
    theirs.activation_checkpointing_disable()
    assert theirs.inner.recompute == "none"


@pytest.mark.parametrize("name", [OWN, WINDOWS, BOTH])
def test_files_in_shards_come_back_to_the_bit_there_and_here(name: str, tmp_path: Path) -> None:
    theirs, ours = theirs_and_ours(name)
    theirs.save_pretrained(tmp_path / "there", max_shard_size="40KB")
    assert len(list((tmp_path / "there").glob("*.safetensors"))) > 1
    again = type(theirs).from_pretrained(tmp_path / "there", device_map="cpu")
    base = AutoModel.from_pretrained(tmp_path / "there")
    read, _ = load(tmp_path / "there")
    assert read.spec == ours.spec
    for key, value in ours.state_dict().items():
        assert torch.equal(again.inner.state_dict()[key], value), key
        assert torch.equal(base.inner.state_dict()[key], value), key
        assert torch.equal(read.state_dict()[key], value), key
    base.save_pretrained(tmp_path / "base")
    assert torch.equal(next(load(tmp_path / "base")[0].parameters()), next(ours.parameters()))
    whole = json.loads((tmp_path / "there" / "config.json").read_text())
    assert whole["model_type"] == "anyformer"
    assert not any("auto_map" in key for key in whole), "no code is named by a checkpoint"


@pytest.fixture(scope="module")
def written_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of its own with a tokenizer, converted from our form."""
    texts = [
        f"the {a} sat on the {b} and saw a {a}. " * 4 for a in ("cat", "dog", "hen") for b in ("mat", "hill", "roof")
    ]
    tokenizer = Tokenizer.train(texts, 280)
    model = af.build(resize(spec_of(OWN), vocab_size=tokenizer.vocab_size), seed=1)
    place = tmp_path_factory.mktemp("wrapped")
    save(model, place / "ours", tokenizer, form="anyformer")
    said = CliRunner().invoke(command, [str(place / "ours"), str(place / "theirs"), "--to", "transformers"])
    assert (said.exit_code, "anyformer.integrations.transformers" in said.output) == (0, True), said.output
    return place


def test_a_converted_directory_opens_by_the_auto_classes(written_directory: Path) -> None:
    there = written_directory / "theirs"
    ours, tokenizer = load(written_directory / "ours")
    assert tokenizer is not None
    theirs, words = AutoModelForCausalLM.from_pretrained(there), AutoTokenizer.from_pretrained(there)
    assert isinstance(theirs, AnyformerForCausalLM)
    assert words.pad_token_id == theirs.config.pad_token_id == tokenizer.end_of_text
    assert words("the cat sat")["input_ids"] == tokenizer.encode("the cat sat")
    writer = pipeline("text-generation", model=theirs, tokenizer=words)
    (said,) = writer("the dog sat on", max_new_tokens=12, do_sample=False, return_full_text=False)
    ids = generate_ids(ours, torch.tensor([tokenizer.encode("the dog sat on")]), max_new_tokens=12)[0].tolist()
    ids = ids[: ids.index(tokenizer.end_of_text)] if tokenizer.end_of_text in ids else ids
    assert said["generated_text"] == tokenizer.decode(ids)
    again = convert(there, written_directory / "again", form="anyformer")
    assert load(again.path)[0].spec == ours.spec


class Lines(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Rows of few words, so that a small model learns them."""

    def __init__(self, vocab_size: int) -> None:
        self.rows = torch.randint(3, min(12, vocab_size), (24, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def trainer_of(model: Any, place: Path, steps: int, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(place),
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=6,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    return Trainer(model=model, args=arguments, train_dataset=Lines(model.config.vocab_size))


@pytest.mark.parametrize("name", [OWN, *(pytest.param(n, marks=pytest.mark.slow) for n in (WINDOWS, STATE, BOTH))])
def test_trainer_lowers_the_loss_and_resumes_to_the_bit(name: str, tmp_path: Path) -> None:
    def fresh() -> Any:
        torch.manual_seed(2)
        return CLASSES.get(name, AnyformerForCausalLM)(config_of(spec_of(name)))

    whole = trainer_of(fresh(), tmp_path / "whole", 12)
    whole.train()
    losses = [each["loss"] for each in whole.state.log_history if "loss" in each]
    assert losses[-1] < losses[0] - 0.3
    again = trainer_of(fresh(), tmp_path / "whole", 12)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    models: tuple[Any, Any] = (whole.model, again.model)
    for (key, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other), key


@pytest.mark.parametrize("name", [OWN, WINDOWS])
def test_lora_trains_merges_and_our_model_reads_it(name: str, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    theirs, ours = theirs_and_ours(name)
    ids = ids_for(ours.spec, 2, 10)
    adapted: Any = get_peft_model(theirs, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(6):
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.2
    adapted.eval()
    with torch.no_grad():
        learnt = adapted(input_ids=ids).logits
        adapted.save_pretrained(tmp_path / "adapter")
        fresh, _ = theirs_and_ours(name)
        reloaded: Any = PeftModel.from_pretrained(fresh, str(tmp_path / "adapter")).eval()
        close(reloaded(input_ids=ids).logits, learnt)
        merged: Any = reloaded.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        torch.testing.assert_close(load(tmp_path / "merged")[0](ids).logits, learnt, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", [OWN, MASKED])
def test_classes_of_texts_over_the_same_files(name: str, tmp_path: Path) -> None:
    theirs, ours = theirs_and_ours(name)
    theirs.save_pretrained(tmp_path / "words")
    judge = AutoModelForSequenceClassification.from_pretrained(tmp_path / "words", num_labels=3).eval()
    assert isinstance(judge, AnyformerForSequenceClassification)
    kept = judge.inner.state_dict()
    for key, value in ours.state_dict().items():
        assert torch.equal(kept[key], value), key
    ids, classes = ids_for(ours.spec, 2, 9), torch.tensor([2, 0])
    out = judge(ids, labels=classes)
    close(out.loss, F.cross_entropy(out.logits, classes))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    close(judge(ids, attention_mask=mask).logits[:1], judge(ids[:1, :5]).logits)
    judge.save_pretrained(tmp_path / "classes")
    read, _ = load(tmp_path / "classes")
    close(read(ids, heads=["classes"]).logits, out.logits)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classes")
    assert torch.equal(again(ids).logits, out.logits)


def refusals() -> list[tuple[str, type[AnyformerError], str, Any]]:
    return [
        (OWN, UsageError, "resize it", lambda theirs, ids: theirs.resize_token_embeddings(200)),
        (OWN, UsageError, "cache_implementation", lambda t, ids: written(t, ids, cache_implementation="static")),
        (OWN, InputError, "inputs_embeds", lambda theirs, ids: theirs(inputs_embeds=torch.zeros(1, 3, 8))),
        (OWN, InputError, "attention_mask has shape", lambda t, ids: t(ids, attention_mask=torch.ones(2, 1, 9, 9))),
        (OWN, InputError, "DynamicCache", lambda theirs, ids: theirs(ids, **{CACHE: dynamic_cache()})),
        (OWN, SpecError, "has no encoder", lambda theirs, ids: AnyformerForSeq2SeqLM(theirs.config)),
        (
            OWN,
            SpecError,
            "no head for hidden words",
            lambda theirs, ids: AnyformerForMaskedLM(config_of(spec_of(BOTH))),
        ),
        (MASKED, SpecError, "writes no text", lambda theirs, ids: AnyformerForCausalLM(theirs.config)),
        (BOTH, UsageError, "decoder_start_token_id", lambda t, ids: without_start(t)(ids, labels=ids)),
    ]


def dynamic_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def without_start(theirs: Any) -> Any:
    theirs.config.decoder_start_token_id = None
    return theirs


@pytest.mark.parametrize(
    ("name", "kind", "says", "act"), refusals(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_does_not_fit_is_refused_by_name(name: str, kind: type[AnyformerError], says: str, act: Any) -> None:
    theirs, ours = theirs_and_ours(name)
    with pytest.raises(kind, match=says):
        act(theirs, ids_for(ours.spec, 2, 9))


def test_a_state_is_not_taken_back() -> None:
    theirs, ours = theirs_and_ours(STATE)
    ids = ids_for(ours.spec, 1, 8)
    with pytest.raises(ValueError, match="stateful"):
        written(theirs, ids, prompt_lookup_num_tokens=2)
    with torch.no_grad():
        cache = theirs(ids, use_cache=True)[CACHE]
    assert not cache.is_croppable
    with pytest.raises(CacheError, match="a state holds all tokens"):
        cache.crop(-1)


def test_a_configuration_is_held_to_its_specification(tmp_path: Path) -> None:
    config = AnyformerConfig.of(spec_of(HYBRID))
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, AnyformerConfig)
    assert (again.spec, again.vocab_size) == (spec_of(HYBRID), spec_of(HYBRID).vocab_size)
    file = tmp_path / "config.json"
    data = json.loads(file.read_text())
    data["specification"]["stack"]["d_model"] = -3
    file.write_text(json.dumps(data))
    with pytest.raises(SpecError, match="d_model"):
        AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(AnyformerError, match="d_model"):
        load(tmp_path)
