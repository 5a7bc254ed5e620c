"""Embedding models in GGUF files: BERT and its like, and EmbeddingGemma with the layers behind its pool.

A file is made here as llama.cpp's conversion makes it: tensors by the names of the package `gguf`, keys by its writer's methods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
import torch
import transformers
from gguf import MODEL_ARCH as A
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.heads import sentence_embedding
from anyformer.families.hf.mapping import computed
from anyformer.hub.gguf_writing import SavedFile
from anyformer.layers import GELU, FeedForwardSpec, LinearSpec, MeanTokensSpec, ReLU, Tanh, UnitLengthSpec
from anyformer.resizing import shrink
from anyformer.spec import HeadSpec, MapSpec, ModelSpec, Width
from tests.cli.running import refused, run, succeeded
from tests.hub.edits import settings
from tests.hub.test_gguf_encoders import PIECES, theirs
from tests.laws.models import randomised
from tests.laws.tolerance import FLOAT32, distance

WORDS = len(PIECES.split())
IDS = torch.randint(5, WORDS, (2, 30), generator=torch.Generator().manual_seed(0))
BERT: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-3,
    "type_vocab_size": 3,
}
DISTILBERT = {
    "vocab_size": WORDS,
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 96,
    "max_position_embeddings": 40,
}
GEMMA: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "sliding_window": 8,
    "rms_norm_eps": 1e-3,
    "use_bidirectional_attention": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    },
}


class Case(NamedTuple):
    arch: A
    hf_type: str
    config: dict[str, Any]
    cut: int = 0  # rows of positions that files leave out
    n_types: int | None = 3  # kinds of text; None: there is no table of them


CASES = {
    "bert": Case(A.BERT, "bert", BERT),
    "electra": Case(A.BERT, "electra", BERT | {"embedding_size": 64}),
    "roberta": Case(A.BERT, "roberta", BERT | {"type_vocab_size": 1, "pad_token_id": 1}, cut=2, n_types=1),
    "distilbert": Case(A.BERT, "distilbert", DISTILBERT, n_types=None),
    "gemma": Case(A.GEMMA_EMBEDDING, "gemma3_text", GEMMA),
    "gemma, by layer": Case(
        A.GEMMA_EMBEDDING,
        "gemma3_text",
        GEMMA | {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}


def model_of(case: Case, folder: Path) -> Any:
    """A model of transformers with random weights, saved in a folder with its words."""
    config: Any = transformers.AutoConfig.for_model(case.hf_type, **case.config)
    model: Any = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    coarse = case.arch == A.GEMMA_EMBEDDING  # so that 1 can be added to its gains, and taken away
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        gain = weight.dim() < 2 and name.endswith("weight")
        value = (0.0 if coarse else 1.0) + 0.3 * noise if gain else noise * weight.shape[-1] ** -0.5
        weight.data = (value * 256).round() / 256 if coarse and gain else value
    model.save_pretrained(folder)
    # Its constructor halves the window that a configuration says, and what it saves is not what was released.
    if coarse:
        settings(folder, sliding_window=case.config["sliding_window"])
    theirs().save_pretrained(folder)
    return model


def with_modules(folder: Path, *dense: Tensor, pool: str = "mean_tokens", unit: bool = True) -> None:
    """Make it a directory of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * unit]
    places = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    listed = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for place in places[1:]:
        (folder / place).mkdir()
    (folder / places[1] / "config.json").write_text(json.dumps({f"pooling_mode_{pool}": True}))
    for weight, place in zip(dense, places[2:], strict=False):
        about = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False}
        identity = {"activation_function": "torch.nn.modules.linear.Identity"}
        (folder / place / "config.json").write_text(json.dumps(about | identity))
        save_file({"linear.weight": weight}, folder / place / "model.safetensors")


def filed(
    folder: Path, case: Case, out: Path, dense: Iterable[Tensor] = (), pool: gguf.PoolingType | None = None
) -> Path:
    """The model of a folder as a file, written by the package gguf."""
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    writer = gguf.GGUFWriter(str(out), gguf.MODEL_ARCH_NAMES[case.arch])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.hidden_dim if case.hf_type == "distilbert" else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_context_length(config.max_position_embeddings - case.cut)
    if case.arch == A.BERT:
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", 1e-12))
        writer.add_token_type_count(case.n_types or 1)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(5000.0)
        writer.add_rope_freq_base_swa(3000.0)
        writer.add_sliding_window(case.config["sliding_window"])
        if "layer_types" in case.config:
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in case.config["layer_types"]])
    if pool is not None:
        writer.add_pooling_type(pool)
    names = gguf.get_tensor_name_map(case.arch, config.num_hidden_layers)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "pooler" in name:
            continue
        if "position_embeddings" in name:
            tensor = tensor[case.cut :]
        if case.arch != A.BERT and name.endswith("norm.weight"):
            tensor = tensor + 1
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        writer.add_tensor(place, tensor.contiguous().numpy())
    for i, weight in enumerate(dense, 2):
        writer.add_dense_features_dims(f"dense_{i}", weight.shape[1], weight.shape[0])
        writer.add_tensor(f"dense_{i}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys of a file, and its tensors."""
    reader = gguf.GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF")}
    return keys, {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}


def layers(width: int = 64, inner: int = 256) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(n, m, generator=generator) / m**0.5 for n, m in ((inner, width), (width, inner)))


@pytest.mark.parametrize("name", CASES)
def test_others_files_are_read_and_written(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = model_of(case, tmp_path / "hf")
    path = filed(tmp_path / "hf", case, tmp_path / "theirs.gguf")
    told = af.convert(tmp_path / "hf", tmp_path / "ours.gguf")
    assert isinstance(told, SavedFile)
    assert told.architecture == gguf.MODEL_ARCH_NAMES[case.arch]
    (keys, tensors), (written, own) = contents(path), contents(tmp_path / "ours.gguf")
    assert own.keys() == tensors.keys()
    assert all(torch.equal(own[each].squeeze(), tensor.squeeze()) for each, tensor in tensors.items())
    assert {key: written.get(key) for key in keys} == keys
    for file in (path, tmp_path / "ours.gguf"):
        ours, _ = af.load(file)
        assert ours.spec.heads == ()
        with torch.no_grad():
            assert distance(ours(IDS).last_hidden_state, model(IDS).last_hidden_state) < FLOAT32
    assert af.load_spec(path).context == (case.config["max_position_embeddings"] - case.cut)


@pytest.mark.parametrize("name", CASES)
def test_a_file_becomes_a_directory_that_transformers_opens(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = model_of(case, tmp_path / "hf")
    af.convert(filed(tmp_path / "hf", case, tmp_path / "theirs.gguf"), tmp_path / "out")
    again: Any = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert distance(again(IDS).last_hidden_state, model(IDS).last_hidden_state) < FLOAT32


@pytest.mark.parametrize("unit", [True, False])
def test_layers_behind_the_pool_are_held(unit: bool, tmp_path: Path) -> None:
    case, dense = CASES["gemma"], layers()
    model = model_of(case, tmp_path / "hf")
    with_modules(tmp_path / "hf", *dense, unit=unit)
    path = filed(tmp_path / "hf", case, tmp_path / "theirs.gguf", dense, gguf.PoolingType.MEAN)
    told = af.convert(tmp_path / "hf", tmp_path / "ours.gguf")
    assert ("length 1" in str(told)) == unit
    (keys, tensors), (written, own) = contents(path), contents(tmp_path / "ours.gguf")
    assert own.keys() == tensors.keys()
    assert all(torch.equal(own[each], tensor) for each, tensor in tensors.items())
    assert {key: written.get(key) for key in keys} == keys
    assert "gemma-embedding.attention.sliding_window_pattern" not in written
    with torch.no_grad():
        expected = model(IDS).last_hidden_state.mean(1) @ dense[0].T @ dense[1].T
        for file in (path, tmp_path / "ours.gguf"):
            ours, _ = af.load(file)
            assert distance(ours(IDS).outputs["embedding"], expected) < FLOAT32
            assert af.load_spec(file) == ours.spec
        af.convert(path, tmp_path / "out")  # and a directory again
        assert (tmp_path / "out" / "3_Dense" / "model.safetensors").exists()
        again, _ = af.load(tmp_path / "out")
        assert distance(again(IDS).outputs["embedding"], expected) < FLOAT32


def test_one_layer_is_held_too(tmp_path: Path) -> None:
    case, square = CASES["gemma, by layer"], layers(inner=64)[0]
    model_of(case, tmp_path / "hf")
    with_modules(tmp_path / "hf", square, pool="cls_token", unit=False)
    prompts = {"prompts": {"query": "find: ", "document": "", "fact": "is it so: "}}
    (tmp_path / "hf" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert "its prompts, query and fact, have no key" in str(af.convert(tmp_path / "hf", tmp_path / "ours.gguf"))
    _, own = contents(tmp_path / "ours.gguf")
    assert torch.equal(own["dense_2.weight"], square)
    assert "dense_3.weight" not in own
    ours, exact = (af.load(tmp_path / name)[0] for name in ("ours.gguf", "hf"))
    assert ours.spec.heads == exact.spec.heads
    assert all(map(torch.equal, ours.parameters(), exact.parameters()))


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["bert", "roberta", "gemma"])
def test_matrices_alone_are_quantised(name: str, kind: str, tmp_path: Path) -> None:
    """llama.cpp adds rows of positions and kinds to those of tokens, which it does in float32 alone."""
    model_of(CASES[name], tmp_path / "hf")
    with_modules(tmp_path / "hf", *(layers() if name == "gemma" else ()))
    af.convert(tmp_path / "hf", tmp_path / "ours.gguf", quantise=kind)  # type: ignore[arg-type]
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "ours.gguf").tensors}
    precise = re.compile(r"(position_embd|token_types|.*norm)\.weight|.*\.bias")
    assert all((each == "F32") == bool(precise.fullmatch(name)) for name, each in kinds.items()), kinds
    ours, exact = (af.load(tmp_path / name, dtype=torch.float32)[0] for name in ("ours.gguf", "hf"))
    with torch.no_grad():
        assert distance(ours(IDS).last_hidden_state, exact(IDS).last_hidden_state) < 0.1


def test_commands_take_such_files(tmp_path: Path) -> None:
    model_of(CASES["bert"], tmp_path / "hf")
    with_modules(tmp_path / "hf", pool="cls_token")
    succeeded(run("convert", tmp_path / "hf", tmp_path / "ours.gguf"))
    assert "GELU" in succeeded(run("show", tmp_path / "ours.gguf")).stdout
    (tmp_path / "lines").write_text("the quick foxes\nnaive cafe, 1\n")
    for name in ("hf", "ours.gguf"):
        out = tmp_path / f"{name}.safetensors"
        succeeded(run("embed", "--model", tmp_path / name, "--data", tmp_path / "lines", "--out", out))
    exact, ours = (load_file(tmp_path / f"{name}.safetensors")["embeddings"] for name in ("hf", "ours.gguf"))
    assert distance(torch.nn.functional.normalize(ours), exact) < FLOAT32


def test_the_other_models_of_these_types_are_told_apart(tmp_path: Path) -> None:
    """A Gemma that sees nothing ahead is gemma3; one that predicts and sees ahead loses its head, which is said."""
    model_of(Case(A.GEMMA3, "gemma3_text", GEMMA | {"use_bidirectional_attention": False}), tmp_path / "causal")
    told = af.convert(tmp_path / "causal", tmp_path / "causal.gguf")
    assert isinstance(told, SavedFile)
    assert told.architecture == "gemma3"
    config: Any = transformers.AutoConfig.for_model("gemma3_text", **GEMMA)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "whole")
    told = af.convert(tmp_path / "whole", tmp_path / "whole.gguf")
    assert isinstance(told, SavedFile)
    assert told.architecture == "gemma-embedding"
    assert "its heads, lm, have no place there" in str(told)
    whole, ours = (af.load(tmp_path / name)[0] for name in ("whole", "whole.gguf"))
    with torch.no_grad():
        assert distance(ours(IDS).last_hidden_state, whole(IDS).last_hidden_state) < FLOAT32


def bert(head: HeadSpec | None = None, **changes: Any) -> ModelSpec:
    spec = shrink(preset("bert-base").spec).but(heads=(head,) if head else ())
    return changed(spec, FeedForwardSpec, **changes)


def gemma(*transform: MapSpec) -> ModelSpec:
    head = HeadSpec(name="embedding", pool=MeanTokensSpec(), transform=transform)
    return shrink(preset("embeddinggemma-300m").spec).but(heads=(head,))


def wide(n: int, **options: Any) -> LinearSpec:
    return LinearSpec(d_out=Width(n), **options)


D = gemma().stack.d_model
REFUSED: dict[str, tuple[ModelSpec, str]] = {
    "layers of BERT": (
        bert(sentence_embedding(layers=(LinearSpec(),))),
        "the head 'embedding' has 1 behind its pool, and GGUF files of bert have no place for layers there; keep the directory",
    ),
    "3 layers": (gemma(LinearSpec(), LinearSpec(), LinearSpec()), "has 3 behind its pool, and GGUF files of gemma-embe"),
    "a bias": (gemma(wide(4 * D), wide(D, bias=True)), "has a layer with bias, and those of GGUF files of gemma-embedding"),
    "an activation": (gemma(wide(4 * D), Tanh(), wide(D)), "has a layer with activation, and those of GGUF files of gemma"),
    "another width": (gemma(wide(8)), f"makes vectors of 8, and GGUF files of gemma-embedding those of the model's width, {D}"),
    "length 1 too early": (gemma(UnitLengthSpec(), wide(D)), "has a layer with length 1 before a layer, and those of GGUF"),
    "GELU by tanh": (bert(activation=GELU(form="tanh")), "bert: its files would say 'erf' for stack.blocks[0].sublayers[1]"),
    "ReLU": (bert(activation=ReLU()), "bert: its files would say GELU"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_says_is_refused(name: str, tmp_path: Path) -> None:
    spec, says = REFUSED[name]
    af.save(randomised(spec), tmp_path / "model")
    refused(run("convert", tmp_path / "model", tmp_path / "out.gguf"), says)
    assert not (tmp_path / "out.gguf").exists()


SPOILT: dict[str, tuple[str, str, Any, str]] = {
    "a decoder's mask": ("bert", "bert.attention.causal", True, "is computed by no class here"),
    "judges of pairs": ("bert", "bert.pooling_type", 4, "pooling_type = 4 is not computed here; 0 to 3 are"),
    "another eps of DistilBERT": ("distilbert", "bert.attention.layer_norm_epsilon", 1e-5, "is computed by no class here"),
    "kinds without a table": ("distilbert", "tokenizer.ggml.token_type_count", 2, "is computed by no class here"),
    "kinds that are not there": ("bert", "tokenizer.ggml.token_type_count", 4, "token_types.weight is [3, 64], not [4, 64]"),
    "experts": ("bert", "bert.moe_every_n_layers", 2, "is unknown here"),
    "layers of another architecture": ("bert", "bert.dense_2_feat_in", 64, "is unknown here"),
    "another width of a layer": ("gemma", "gemma-embedding.dense_3_feat_in", 8, "= 8, and dense_3.weight has 256; convert"),
    "layers and no pool": ("gemma", "gemma-embedding.pooling_type", 0, "gives the 2 layers behind the pool nothing to read"),
    "windows in no order": ("gemma", "gemma-embedding.attention.sliding_window_pattern", [1, 2], "is no list of which layers"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_file_that_says_otherwise_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, key, value, says = SPOILT[name]
    model_of(CASES[case], tmp_path / "hf")
    begin: Callable[..., None] = gguf.GGUFWriter.write_header_to_file
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", list: "ARRAY"}

    def spoilt(self: gguf.GGUFWriter, *args: Any) -> None:
        kind = gguf.GGUFValueType[kinds[type(value)]]
        self.kv_data[0][key] = gguf.GGUFValue(value, kind, gguf.GGUFValueType.UINT32)
        begin(self, *args)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", spoilt)
    dense = layers() if case == "gemma" else ()
    path = filed(tmp_path / "hf", CASES[case], tmp_path / "theirs.gguf", dense, gguf.PoolingType.MEAN)
    with pytest.raises(CheckpointError, match=re.escape(says)):
        af.load(path)
    refused(run("embed", "--model", path, "--text", "a"), says)


def test_a_number_says_every_how_many_layers_one_sees_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four = Case(A.GEMMA_EMBEDDING, "gemma3_text", GEMMA | {"num_hidden_layers": 4})
    case = four._replace(config=four.config | {"layer_types": ["sliding_attention", "full_attention"] * 2})
    model_of(case, tmp_path / "hf")
    by_list = filed(tmp_path / "hf", case, tmp_path / "list.gguf")
    begin = gguf.GGUFWriter.add_sliding_window

    def both(self: gguf.GGUFWriter, size: int) -> None:
        begin(self, size)
        self.add_sliding_window_pattern(2)

    monkeypatch.setattr(gguf.GGUFWriter, "add_sliding_window", both)
    by_number = filed(tmp_path / "hf", four, tmp_path / "number.gguf")
    assert computed(af.load_spec(by_number)) == computed(af.load_spec(by_list))
