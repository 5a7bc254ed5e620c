"""Law 7: weights go to Hugging Face and back; transformers loads what we save, silently, and we what it saves."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, PRESETS
from anyformer.families.hf.mapping import class_of, fitting, ours_of, shapes, spec_of, their_shapes, theirs_of
from anyformer.families.hf.pooling import without_pooling
from anyformer.hub import load, save
from anyformer.hub.weights import INDEX
from anyformer.layers import EngramSpec, RouterSpec
from anyformer.spec import ModelSpec, TableSpec
from anyformer.text import Tokenizer
from tests.laws.inputs import inputs_for
from tests.laws.models import every_preset, same
from tests.laws.parity import clear, pair, single, theirs_on
from tests.laws.references import COMPARED, FULL_SIZED
from tests.laws.tolerance import close
from tests.laws.weights import edited, filled, telling
from tests.sample import beside, is_one_of_few, sampled

every_compared = pytest.mark.parametrize("spec", sampled(COMPARED))
full_sized = pytest.mark.parametrize("name", sampled(FULL_SIZED))


TIED_ALWAYS = "The tied weights mapping and config for this model specifies to tie shared.weight to lm_head.weight"


class Records(logging.Handler):
    """Everything that is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("The explicitly set RoPE scaling factor"):
            return  # a shrunk context is not the factor times the original context any more
        if record.getMessage().startswith(TIED_ALWAYS):
            return  # T5's configuration says that of every model, whatever it is given
        if record.getMessage().startswith("Input ids are automatically padded"):
            return  # Longformer's classes say so of every row that is no multiple of the window
        if record.getMessage().startswith("This is a friendly reminder"):
            return  # XLNet's class has no longest text, and generation exceeds none at once
        if record.getMessage().startswith("Attention type 'block_sparse' is not possible"):
            return  # BigBird's class says so of every short text
        self.lines.append(record.getMessage())


UNHEARD = (
    "reference PyTorch implementation",  # said of recurrences where the field's own kernels are not installed
    "CUDA-fused xIELU not available",  # the same of Apertus
    "high_freq_factor field must be greater",  # said of Llama 4 Scout as it was released: no wave is between
)


@contextmanager
def silence() -> Iterator[None]:
    """Fail on any warning and on anything that transformers logs as one, but that it has no faster kernel here."""
    records, logger = Records(), logging.getLogger("transformers")
    level = logger.level
    logger.addHandler(records)
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        logger.removeHandler(records)
        logger.setLevel(level)
    assert [line for line in records.lines if not any(said in line for said in UNHEARD)] == []


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["to be or not to be, that is the question " * 20], vocab_size=280)


@full_sized
def test_rows_cover_both_sides_once_and_go_both_ways(name: str) -> None:
    """At full size, on the meta device: names and shapes; the class of transformers says what it holds."""
    spec = without_pooling(PRESETS[name].spec)
    family, settings = fitting(FAMILIES.values(), spec)
    rows = family.rows(spec)
    config = transformers.AutoConfig.for_model(family.hf_type, **settings)
    with torch.device("meta"):
        model = getattr(transformers, class_of(family, settings))._from_config(config)
        if (head := model.get_output_embeddings()) is not None and not spec.heads[0].tied:
            head.weight = nn.Parameter(head.weight.clone())  # T5's ties all that files do not hold apart
    dropped = {n for row in rows if not row.theirs for n in row.also}
    read = [n for row in rows for n in row.theirs]
    # Of one tensor a class may name the head's first.
    aliases = {n for row in rows if row.theirs for n in row.also}.difference(read)
    every = [(n, p) for n, p in model.named_parameters(remove_duplicate=False) if n not in aliases]
    theirs = {n: tuple(p.shape) for n, p in every if p.requires_grad or n not in dropped}
    kept = model.state_dict()  # what no gradient moves, such as the biases of a router's choice, is a buffer there
    theirs |= {n: tuple(b.shape) for n, b in model.named_buffers() if n in kept and n not in dropped}
    assert their_shapes(rows, spec) == theirs
    assert sorted(read) == sorted(theirs)
    assert sorted(n for row in rows for n in row.ours) == sorted(shapes(spec))


@every_compared
def test_load_undoes_save(spec: ModelSpec) -> None:
    family, _ = fitting(FAMILIES.values(), spec)
    rows, weights = family.rows(spec), telling(spec)
    theirs = dict(theirs_of(rows, weights.__getitem__))
    back = dict(ours_of(rows, theirs.__getitem__))
    assert set(back) == set(weights)
    assert all(torch.equal(back[n], weights[n]) for n in weights)
    again = dict(theirs_of(rows, back.__getitem__))
    assert all(torch.equal(again[n], theirs[n]) for n in theirs)


@full_sized
def test_the_configuration_goes_both_ways(name: str) -> None:
    """Heads of 128 features say so in the preset where they follow from d_model anyway; the rest is equal."""
    spec = without_pooling(PRESETS[name].spec)
    family, settings = fitting(FAMILIES.values(), spec)
    _, back = spec_of(FAMILIES, {"model_type": family.hf_type, **settings}, "config.json")
    family_again, settings_again = fitting(FAMILIES.values(), back)
    assert (family_again, settings_again) == (family, settings)
    assert back.init == spec.init
    assert back.context == spec.context


@pytest.mark.parametrize(
    ("spec", "shard_nbytes"), beside(COMPARED, {"one file": (10**9,), "sharded": (30_000,)}, {"one file"})
)
def test_transformers_loads_what_we_save(
    spec: ModelSpec, shard_nbytes: int, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    spec = grown(spec, tokenizer)
    given = inputs_for("plain", spec)
    model = next(model for seed in range(20) if clear(model := filled(spec, telling(spec, seed)), given))
    saved = save(model, tmp_path / "out", tokenizer, shard_nbytes=shard_nbytes)
    kind: Any = getattr(transformers, class_of(*fitting(FAMILIES.values(), spec)))
    assert (saved.form, saved.reason) == ("hf", None)
    assert (tmp_path / "out" / INDEX).exists() == (shard_nbytes == 30_000)
    with silence():
        theirs: Any = kind.from_pretrained(tmp_path / "out")
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        with torch.no_grad():
            logits = theirs_on(theirs, given, spec)
            text = their_tokenizer("to be that question", return_tensors="pt").input_ids
            if theirs.can_generate():
                options = {
                    "max_new_tokens": 2,
                    "pad_token_id": 0,
                    "use_cache": getattr(theirs.config, "use_cache", True),
                }
                written = theirs.generate(text, attention_mask=torch.ones_like(text), **options)
                assert written.shape[1] <= (1 if spec.encoder else text.shape[1]) + 2
    with torch.no_grad():
        close(given.fit_for(theirs, spec).run(model).logits, logits, single(spec))
    assert text[0].tolist() == tokenizer.encode("to be that question")
    assert theirs.config.eos_token_id == tokenizer.end_of_text
    assert theirs.dtype == torch.float32


@pytest.mark.parametrize(
    ("spec", "shard"), beside(COMPARED, {"one file": ("50GB",), "sharded": ("50KB",)}, {"one file"})
)
def test_we_load_what_transformers_saves(spec: ModelSpec, shard: str, tmp_path: Path) -> None:
    both, given = pair(spec), inputs_for("plain", spec)
    both.theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / INDEX).exists() == (shard == "50KB")
    model, tokenizer = load(tmp_path)
    assert tokenizer is None
    with torch.no_grad():
        assert same(spec, given.run(model).logits, given.run(both.ours).logits)
        close(given.fit_for(both.theirs, spec).run(model).logits, theirs_on(both.theirs, given, spec), single(spec))
    # What it wrote is the same model to us, however it spells it.
    assert fitting(FAMILIES.values(), model.spec) == fitting(FAMILIES.values(), spec)


@pytest.mark.parametrize("spec", sampled(COMPARED, is_one_of_few))
def test_files_of_a_model_without_its_head_do_where_it_is_tied(spec: ModelSpec, tmp_path: Path) -> None:
    both, given = pair(spec), inputs_for("plain", spec)
    headless = both.theirs.base_model
    headless.save_pretrained(tmp_path)
    family = both.family
    rows = (family.files or family.rows)(spec)
    of_head = {n for row in rows for n in row.theirs if not n.startswith(family.prefix)}
    if of_head and headless is not both.theirs:  # T5's names no model without its head
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family.hf_type, **fitting([family], spec)[1]}))
        with pytest.raises(CheckpointError, match="; missing: ") as error:
            load(tmp_path)
        assert set(str(error.value).partition("; missing: ")[2].split(", ")) == of_head
        return
    with torch.no_grad():
        assert same(spec, given.run(load(tmp_path)[0]).logits, given.run(both.ours).logits)


@pytest.mark.parametrize("form", ["anyformer", None])
@every_preset
def test_we_load_what_we_save(spec: ModelSpec, form: str | None, tmp_path: Path, tokenizer: Tokenizer) -> None:
    spec = grown(spec, tokenizer)
    model = filled(spec, telling(spec))
    saved = save(model, tmp_path / "out", tokenizer, form=form)  # type: ignore[arg-type]
    back, words = load(tmp_path / "out")
    assert words is not None
    assert words.fingerprint == tokenizer.fingerprint
    state = model.state_dict()
    assert list(state) == list(back.state_dict())
    assert all(torch.equal(state[n], other) for n, other in back.state_dict().items())
    if saved.form == "anyformer":
        assert back.spec == spec


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2 = gpt2-medium = gpt2-large = gpt2-xl", "llama3.2-1b"])
def test_the_dtype_is_kept_or_cast(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = filled(COMPARED[name], telling(COMPARED[name])).to(dtype)
    save(model, tmp_path / "half")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    kept, cast = load(tmp_path / "half")[0], load(tmp_path / "half", dtype=torch.float32)[0]
    for n, weight in model.state_dict().items():
        assert kept.state_dict()[n].dtype == dtype
        assert torch.equal(kept.state_dict()[n], weight)
        assert cast.state_dict()[n].dtype == torch.float32
        assert torch.equal(cast.state_dict()[n], weight.float())
    with silence():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert theirs.dtype == dtype


def test_a_tied_table_stays_one(tmp_path: Path) -> None:
    """Loaded, its two uses still share memory, so that training keeps them equal."""
    spec = COMPARED["llama3.2-1b"]
    save(filled(spec, telling(spec)), tmp_path / "out")
    model, _ = load(tmp_path / "out")
    embedding: Any = model.stack.embedding
    assert model.head().table.weight is embedding.terms[0].table.weight


def grown(spec: ModelSpec, tokenizer: Tokenizer) -> ModelSpec:
    """Return the model with rows for the tokenizer's vocabulary."""
    words, size = spec.vocab_size, tokenizer.vocab_size
    spec = edited(spec, RouterSpec, lambda router: router.but(hashed=router.hashed and size))
    spec = edited(spec, EngramSpec, lambda engram: engram.but(vocab=size, end=tokenizer.end_of_text))
    return edited(spec, TableSpec, lambda table: table.but(rows=size) if table.rows == words else table)
