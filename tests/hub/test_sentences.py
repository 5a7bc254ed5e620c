"""Directories of sentence-transformers: both spellings of their settings, what is refused, and back again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from anyformer import layers
from anyformer.errors import CheckpointError, SpecError
from anyformer.families import preset
from anyformer.families.heads import pooler, sentence_embedding
from anyformer.hub import SavedDirectory, convert, load, load_spec, save
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import MapSpec, PoolSpec, Width
from tests.hub.edits import settings
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


def test_no_limit_is_none(tmp_path: Path) -> None:
    """Transformers writes the largest number that it knows beside T5's encoder, which has positions without end."""
    whole = shrink(preset("t5-small").spec)
    assert whole.encoder is not None
    spec = whole.but(stack=whole.encoder, encoder=None, heads=(sentence_embedding(),), context=None)
    saved = save(randomised(spec), tmp_path / "model")
    assert saved.form == "hf"
    (saved.path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert load_spec(saved.path).context is None


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
    """A head before another one, or behind a layer that no module is."""
    spec = shrink(preset("distilbert-base").spec)
    gated = sentence_embedding(layers=(layers.LinearSpec(bias=True, role="inner"), layers.ReLU2()))
    for i, heads in enumerate([(sentence_embedding(), *spec.heads), (gated,)]):
        model = randomised(spec.but(heads=heads))
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
        (mode("mean_tokens"), (*KINDS[:2], "LayerNorm"), "LayerNorm computes something else"),
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


WIDTH = shrink(preset("bert-base").spec).stack.width
LAYERS: tuple[dict[str, Any], ...] = (
    {"out_features": 24, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
    {"out_features": 20, "bias": True, "activation_function": "torch.nn.modules.activation.GELU"},
    {"out_features": 12},  # with a bias, and tanh
)


def with_layers(folder: Path, *layers: dict[str, Any]) -> Path:
    """A BERT whose mean goes through Dense layers, and then to length 1, as sentence-transformers writes them."""
    written(folder, mode("mean_tokens"), (*KINDS[:2], *["Dense"] * len(layers), "Normalize"))
    width = WIDTH
    for i, layer in enumerate(layers, 2):
        n_out = layer["out_features"]
        (folder / f"{i}_Dense").mkdir()
        held = {"linear.weight": torch.randn(n_out, width), "linear.bias": torch.randn(n_out)}
        kept = held if layer.get("bias", True) else {"linear.weight": held["linear.weight"]}
        save_file(kept, folder / f"{i}_Dense" / "model.safetensors")
        (folder / f"{i}_Dense" / "config.json").write_text(json.dumps({"in_features": width, **layer}))
        width = n_out
    return folder


def through_layers(model: Transformer, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model answers, and what plain layers make of its mean."""
    ids = ids_for(model.spec, 2, 6)
    with torch.no_grad():
        out = model(ids)
    found = out.last_hidden_state.mean(1)
    after = {
        "torch.nn.modules.linear.Identity": lambda x: x,
        "torch.nn.modules.activation.GELU": torch.nn.functional.gelu,
    }
    for place in sorted(folder.glob("*_Dense")):
        held = load_file(place / "model.safetensors")
        said = json.loads((place / "config.json").read_text()).get("activation_function")
        found = torch.nn.functional.linear(found, held["linear.weight"], held.get("linear.bias"))
        found = after.get(said, torch.tanh)(found)
    return out.outputs["embedding"], found / found.norm(dim=1, keepdim=True)


def test_layers_behind_the_pool_are_read(tmp_path: Path) -> None:
    """As EmbeddingGemma's, LaBSE's and stella's."""
    folder = with_layers(tmp_path, *LAYERS)
    model, _ = load(folder)
    assert model.spec == load_spec(folder)
    torch.testing.assert_close(*through_layers(model, folder))


@pytest.mark.parametrize("by_file", [True, False])
def test_layers_behind_the_pool_are_written(by_file: bool, tmp_path: Path) -> None:
    model, _ = load(with_layers(tmp_path / "theirs", *LAYERS))
    if by_file:
        convert(tmp_path / "theirs", tmp_path / "ours")
    else:
        save(model, tmp_path / "ours")
    for i, layer in enumerate(LAYERS, 2):
        said = json.loads((tmp_path / "ours" / f"{i}_Dense" / "config.json").read_text())
        default = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
        assert {name: said[name] for name in {**default, **layer}} == {**default, **layer}
        held = [load_file(tmp_path / side / f"{i}_Dense" / "model.safetensors") for side in ("theirs", "ours")]
        assert held[0].keys() == held[1].keys()
        assert all(torch.equal(held[0][name], held[1][name]) for name in held[0])
    again, _ = load(tmp_path / "ours")
    assert again.spec == model.spec
    torch.testing.assert_close(*through_layers(again, tmp_path / "ours"))
    convert(tmp_path / "ours", tmp_path / "form of ours", form="anyformer")
    same, _ = load(tmp_path / "form of ours")
    assert all(torch.equal(mine, other) for mine, other in zip(again.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("layers", [(), (layers.LinearSpec(d_out=Width(8)), layers.Tanh())])
def test_a_specification_of_ours_says_all(layers: tuple[MapSpec, ...], tmp_path: Path) -> None:
    """Beside a directory for `anyformer.integrations.transformers` lie modules too, for others."""
    model = randomised(shrink(preset("distilbert-base").spec).but(heads=(sentence_embedding(layers=layers),)))
    save(model, tmp_path / "model", form="transformers")
    assert (tmp_path / "model" / "2_Dense" / "model.safetensors").is_file() == bool(layers)
    again, _ = load(tmp_path / "model")
    assert again.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        ({"activation_function": "my.own.Swish"}, "activation_function = 'my.own.Swish' is not computed here"),
        ({"use_residual": True}, "use_residual = True"),
        ({"module_output_name": "token_embeddings"}, "module_output_name = 'token_embeddings'"),
        ({"out_features": 0}, "out_features"),
        ({"scale": 0.1}, "scale = 0.1 is unknown here"),
        ({"out_features": 13}, r"\[13, "),
        ({"bias": False}, "surplus: linear.bias"),
    ],
)
def test_layers_that_are_not_computed_here(layer: dict[str, Any], says: str, tmp_path: Path) -> None:
    folder = with_layers(tmp_path, {"out_features": 12})
    settings(folder / "2_Dense", **layer)
    with pytest.raises(CheckpointError, match=says) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_layers_of_a_pickle_are_not_opened(tmp_path: Path) -> None:
    folder = with_layers(tmp_path, {"out_features": 12})
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        load(folder)


def test_gguf_files_have_no_place_for_layers(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="GGUF files of bert have no place for layers there; keep the directory"):
        convert(with_layers(tmp_path / "theirs", {"out_features": 12}), tmp_path / "model.gguf")


def test_a_decoder_without_its_head(tmp_path: Path) -> None:
    """What was released as a whole class whose head nobody saved, as sentence-transformers loads it; and back as a bare one."""
    spec = shrink(preset("mistral").spec).but(heads=(sentence_embedding(layers.LastTokenSpec()),))
    model = randomised(spec)
    assert save(model, tmp_path / "bare").form == "hf"
    assert json.loads((tmp_path / "bare" / "config.json").read_text())["architectures"] == ["MistralModel"]
    settings(tmp_path / "bare", architectures=["MistralForCausalLM"])
    assert load_spec(tmp_path / "bare").heads == spec.heads
    ids = ids_for(spec, 2, 5)
    with torch.no_grad():
        again = load(tmp_path / "bare")[0](ids).outputs
        torch.testing.assert_close(again["embedding"], model(ids).outputs["embedding"])
    (tmp_path / "bare" / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        load(tmp_path / "bare")
