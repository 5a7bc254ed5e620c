"""Directories of sentence-transformers: both spellings of their settings, what is refused, and back again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import layers
from anyformer.errors import CheckpointError
from anyformer.families import preset
from anyformer.families.heads import pooler, sentence_embedding
from anyformer.hub import SavedDirectory, convert, load, load_spec, save
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import PoolSpec
from tests.laws.models import ids_for, randomised

KINDS = ("Transformer", "Pooling", "Normalize")
OLD, NEW = "sentence_transformers.models.{}", "sentence_transformers.sentence_transformer.modules.{}"


def written(
    folder: Path, pooling: dict[str, Any], kinds: tuple[str, ...] = KINDS, at: str = "", form: str = OLD
) -> Path:
    """A BERT with its pooler, as transformers' class writes it, and modules beside it."""
    model = randomised(shrink(preset("bert-base").spec).but(heads=(pooler(),)))
    save(model, folder / at / "aside", form="hf")
    for file in (folder / at / "aside").iterdir():
        shutil.move(file, folder / at / file.name)
    (folder / at / "aside").rmdir()
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else at, "type": form.format(kind)}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def mode(name: str) -> dict[str, Any]:
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken", "weightedmean_tokens")
    return {"word_embedding_dimension": 64, **{f"pooling_mode_{one}": one == name for one in names}}


def pooled(model: Transformer, pool: str, unit: bool) -> None:
    """The head's answer against the last hidden state, pooled by hand, with padding on the right."""
    ids = ids_for(model.spec, 2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        out = model(ids, mask)
    states = [out.last_hidden_state[0], out.last_hidden_state[1, :4]]
    expected = torch.stack([{"mean": s.mean(0), "cls": s[0], "last": s[-1]}[pool] for s in states])
    expected = expected / expected.norm(dim=1, keepdim=True) if unit else expected
    torch.testing.assert_close(out.outputs["embedding"], expected)


@pytest.mark.parametrize(
    ("settings", "pool"),
    [
        (mode("mean_tokens"), "mean"),
        (mode("cls_token"), "cls"),
        (mode("lasttoken"), "last"),
        ({"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
    ],
    ids=["mean", "cls", "last", "new mean", "new cls", "new last"],
)
@pytest.mark.parametrize("unit", [True, False])
def test_modules_make_the_head(settings: dict[str, Any], pool: str, unit: bool, tmp_path: Path) -> None:
    form = NEW if "pooling_mode" in settings else OLD
    model, _ = load(written(tmp_path, settings, KINDS if unit else KINDS[:2], form=form))
    assert [head.name for head in model.spec.heads] == ["pooler", "embedding"]
    pooled(model, pool, unit)


@pytest.mark.parametrize(
    "limits", [{"sentence_bert_config.json": "max_seq_length"}, {"tokenizer_config.json": "model_max_length"}]
)
def test_the_length_is_what_the_files_say(limits: dict[str, str], tmp_path: Path) -> None:
    folder = written(tmp_path, mode("mean_tokens"))
    before = load_spec(folder).context
    assert before is not None
    for file, key in limits.items():
        (folder / file).write_text(json.dumps({key: 5}))
    assert load_spec(folder).context == 5
    for file, key in limits.items():
        (folder / file).write_text(json.dumps({key: 10**30}))
    assert load_spec(folder).context == before


def test_the_model_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    model, _ = load(written(tmp_path, mode("mean_tokens"), at="0_Transformer"))
    pooled(model, "mean", unit=True)


@pytest.mark.parametrize("pool", [layers.MeanTokensSpec(), layers.FirstTokenSpec(), layers.LastTokenSpec()])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("by_file", [True, False])
def test_the_head_is_written_and_read_again(pool: PoolSpec, unit: bool, by_file: bool, tmp_path: Path) -> None:
    head = sentence_embedding(pool) if unit else sentence_embedding(pool).but(transform=())
    model = randomised(shrink(preset("distilbert-base").spec).but(heads=(head,)))
    saved = save(model, tmp_path / "model")
    if by_file:
        found = convert(tmp_path / "model", tmp_path / "again")
        assert isinstance(found, SavedDirectory)
        saved = found
    assert saved.form == "hf"
    assert (saved.path / "2_Normalize").is_dir() == unit
    again, _ = load(saved.path)
    assert again.spec.heads == (head,)
    ids = ids_for(model.spec, 2, 5)
    with torch.no_grad():
        assert torch.equal(again(ids).outputs["embedding"], model(ids).outputs["embedding"])


def test_what_other_files_have_no_word_for_stays_ours(tmp_path: Path) -> None:
    """A head before another one, or a decoder without the head that its class has."""
    spec = shrink(preset("distilbert-base").spec)
    first = randomised(spec.but(heads=(sentence_embedding(), *spec.heads)))
    decoder = randomised(shrink(preset("gpt2").spec).but(heads=(sentence_embedding(layers.LastTokenSpec()),)))
    for i, model in enumerate((first, decoder)):
        saved = save(model, tmp_path / str(i))
        assert saved.form == "anyformer"
        assert not (saved.path / "modules.json").exists()
        assert load(saved.path)[0].spec == model.spec


@pytest.mark.parametrize(
    ("settings", "kinds", "says"),
    [
        (mode("max_tokens"), KINDS, "pools by max_tokens; one of cls_token, mean_tokens, lasttoken"),
        (mode("weightedmean_tokens"), KINDS, "pools by weightedmean_tokens"),
        ({"pooling_mode": "max"}, KINDS, "pools by max_tokens"),
        ({"pooling_mode": ["mean", "cls"]}, KINDS, "pools by mean_tokens and cls_token"),
        (mode("none"), KINDS, "pools by nothing"),
        (mode("mean_tokens"), (*KINDS[:2], "Dense"), "Dense computes something else"),
        (mode("mean_tokens"), ("Pooling", "Transformer"), "does not begin with a Transformer"),
        (mode("mean_tokens"), ("Transformer",), "lists Transformer; only"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(
    settings: dict[str, Any], kinds: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, settings, kinds)
    with pytest.raises(CheckpointError, match=says):
        load(folder)


@pytest.mark.parametrize("broken", ["{", "[1, 2]", "[]", '{"type": 1}'])
def test_a_broken_list_of_modules_is_refused(broken: str, tmp_path: Path) -> None:
    folder = written(tmp_path, mode("mean_tokens"))
    (folder / "modules.json").write_text(broken)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        load(folder)
