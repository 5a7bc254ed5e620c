"""Families from outside: a file or an installed package registers lineages, presets and checkpoint families."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli.names import import_parts
from anyformer.errors import CheckpointError, SpecError, UsageError
from anyformer.families import FAMILIES, PRESETS, register
from anyformer.families.compose import bidirectional, changed
from anyformer.families.lineage import Lineage, Origin, Preset
from anyformer.families.registry import ALIASES
from anyformer.families.tree import LINEAGE_OF, TREE
from anyformer.measure.verify import verify
from anyformer.spec import TableSpec
from tests.cli.running import answer, refused, run, succeeded
from tests.laws.weights import telling

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "own_family.py"
TABLES: tuple[MutableMapping[str, Any], ...] = (TREE, LINEAGE_OF, PRESETS, ALIASES, FAMILIES)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = [dict(table) for table in TABLES]
    yield
    for table, held in zip(TABLES, before, strict=True):
        table.clear()
        table.update(held)
    sys.modules.pop(FILE.stem, None)


@pytest.fixture
def sheep() -> ModuleType:
    import_parts(FILE)
    return sys.modules[FILE.stem]


def test_what_a_file_registers_is_known_by_name() -> None:
    listed = answer("presets", "--family", "sheep", "--import", FILE)["presets"]
    d, f = 192, 768
    layer = 4 * d * d + 2 * d * f + 2 * d + 2 * d // 4
    assert [(p["name"], p["aliases"]) for p in listed] == [("sheep-3m", []), ("sheep-12m", ["sheep"])]
    assert listed[0]["parameters"] == 8192 * d + 4 * layer + d
    assert "squared ReLU" in succeeded(run("show", "sheep", "--import", FILE)).stdout
    assert "QK-norm" in succeeded(run("diff", "llama2", "sheep", "--lineage", "--import", FILE)).stdout
    entries = answer("history", "--since", "2026", "--import", FILE)["entries"]
    assert "sheep-12m" in [entry["model"] for entry in entries]
    assert af.preset("sheep").name == "sheep-12m"
    assert af.vary("sheep", norm="LayerNorm").n_layers == 8


def test_the_same_file_twice_by_any_path_is_harmless(tmp_path: Path, sheep: ModuleType) -> None:
    (tmp_path / FILE.name).symlink_to(FILE)
    for path in (FILE, tmp_path / FILE.name, FILE.parent / ".." / "examples" / FILE.name):
        import_parts(path)
    assert sheep.__spec__ is not None
    assert sheep.__spec__.loader is not None
    sheep.__spec__.loader.exec_module(sheep)  # as a cell that is run again: equal lineages, and functions that are not
    assert af.preset("sheep-3m") == sheep.SHEEP.presets[0]
    assert FAMILIES["sheep"].head is sheep.SHEEP_FILES.head
    assert FAMILIES["sheep"].architecture == sheep.SHEEP_FILES.architecture


def test_a_family_comes_in_all_shapes(sheep: ModuleType, tmp_path: Path) -> None:
    """Its class without a head, and tokens that see ahead, as every family's."""
    spec = af.resize(af.preset("sheep-3m").spec, n_params=60_000, vocab_size=50)
    both = spec.but(heads=(), stack=bidirectional(changed(spec.stack, TableSpec, shared=None)))
    model = af.build(both, seed=1)
    saved = af.save(model, tmp_path / "sheep", form="hf")
    said = json.loads((saved.path / "config.json").read_text())
    assert said["architectures"] == [f"{sheep.SHEEP_FILES.architecture.removesuffix('ForCausalLM')}Model"]
    assert said["is_causal"] is False
    again, _ = af.load(saved.path)
    assert again.spec.heads == ()
    assert all(torch.equal(mine, own) for mine, own in zip(again.parameters(), model.parameters(), strict=True))
    ids = torch.arange(12).view(2, 6)
    assert torch.equal(again(ids).last_hidden_state, model(ids).last_hidden_state)


def named(*names: str, known: str = "", parent: str = "llama2", year: int = 2026, name: str = "goat") -> Lineage:
    spec = af.preset("gpt2").spec
    return Origin(name, parent, year, "here").lineage("more", *(Preset(n, spec) for n in names), known=known)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (named("goat", name="llama"), "a lineage 'llama' exists already"),
        (named("goat", parent="lama"), "descends from 'lama', which is none"),
        (named("goat", year=2019), "is of 2019, 'llama2' of 2023"),
        (named("goat", "gpt2"), "a preset 'gpt2' exists already"),
        (named("goat", "llama2"), "a preset 'llama2' exists already"),  # an alias
        (named("goat", "gpt-4"), "a preset 'gpt-4' exists already"),  # not public
        (named("goat", "goat"), "a preset 'goat' exists already"),
        (named("a/goat"), "'a/goat', which is a path or a variant"),
        (named("goat+norm=LayerNorm"), "which is a path or a variant"),
        (named("goat", known="kid"), "known by 'kid', which is none of its presets; they are goat"),
    ],
)
def test_what_cannot_join_is_refused_whole(line: Lineage, said: str) -> None:
    before = [dict(table) for table in TABLES]
    with pytest.raises(SpecError, match=said.replace("+", r"\+")):
        register(line)
    assert [dict(table) for table in TABLES] == before


def test_a_name_of_a_class_is_taken_once(sheep: ModuleType) -> None:
    others = ({"hf_type": "llama", "architecture": "LlamaForCausalLM"}, {"architecture": "GoatModel"})
    for other in (sheep.SHEEP_FILES._replace(**each) for each in others):
        with pytest.raises(SpecError, match="exists already"):
            register(other)
    register(replace(sheep.SHEEP))  # equal
    with pytest.raises(SpecError, match="a lineage 'sheep' exists already"):
        register(replace(sheep.SHEEP, year=2027))


def test_a_file_that_cannot_join_is_one_line(tmp_path: Path) -> None:
    text = "from anyformer.families import register\nfrom anyformer.families.qwen3 import QWEN3\n"
    (tmp_path / "twice.py").write_text(f"{text}register(QWEN3._replace)", encoding="utf-8")
    refused(run("show", "gpt2", "--import", tmp_path / "twice.py"), "AttributeError on line 3")
    (tmp_path / "taken.py").write_text(
        f"{text}import dataclasses\nregister(dataclasses.replace(QWEN3, year=2031))", encoding="utf-8"
    )
    refused(run("show", "gpt2", "--import", tmp_path / "taken.py"), "a lineage 'qwen3' exists already")


def written(sheep: ModuleType, directory: Path) -> af.Transformer:
    """A small model with nothing at its start, as the family's files."""
    model = af.build(sheep.sheep(2, 32, 4, 48).but(context=64), seed=0)
    model.load_state_dict(telling(model.spec))
    af.save(model, directory, form="hf")
    return model


def test_its_files_are_read_with_the_import_and_name_it_without(tmp_path: Path, sheep: ModuleType) -> None:
    model = written(sheep, tmp_path / "m")
    ids = torch.arange(40)[None] % 8192
    with torch.no_grad():
        assert torch.equal(af.load(tmp_path / "m")[0](ids).logits, model(ids).logits)
    succeeded(run("convert", tmp_path / "m", tmp_path / "ours", "--to", "anyformer", "--import", FILE))
    succeeded(run("convert", tmp_path / "ours", tmp_path / "back", "--to", "hf", "--import", FILE))
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "m" / name).read_bytes(), name
    del FAMILIES["sheep"]
    with pytest.raises(CheckpointError, match="a family of your own is known by --import FILE"):
        af.load(tmp_path / "m")


# A class of transformers of the family's name, whose code is the oracle: Apertus with another activation and modules renamed.
THEIRS = """
from transformers import ApertusConfig, ApertusForCausalLM

class SheepConfig(ApertusConfig):
    model_type = "sheep"

    def __post_init__(self, **settings):
        self.rope_parameters = {"rope_type": "default", "rope_theta": settings.pop("rope_theta")}
        super().__post_init__(**settings)

class SheepForCausalLM(ApertusForCausalLM):
    config_class = SheepConfig

    @classmethod
    def from_pretrained(cls, path, **options):
        names = {
            "^flock": "model", "before_grazing": "attention_layernorm", "before_wool": "feedforward_layernorm",
            r"grazing[.]([qkvo])[.]": r"self_attn.\\1_proj.", "grazing": "self_attn",
            r"wool[.](up|down)": r"mlp.\\1_proj", "fence": "norm", "names": "embed_tokens",
        }
        return super().from_pretrained(path, key_mapping=names, **options)
"""


def test_verify_compares_it_with_the_class_that_its_file_defines(tmp_path: Path, sheep: ModuleType) -> None:
    written(sheep, tmp_path / "m")
    with pytest.raises(UsageError, match="transformers has no class SheepForCausalLM; give one to compare with"):
        verify(tmp_path / "m")
    (tmp_path / "sheep_theirs.py").write_text(THEIRS, encoding="utf-8")
    import_parts(tmp_path / "sheep_theirs.py")
    found = verify(tmp_path / "m", n_tokens=40)
    assert found.first_difference is None, found.places
    assert found.architecture == "SheepForCausalLM"


PACKAGED = """
import anyformer as af
from anyformer.families import register
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama

register(Origin("goat", "llama2", 2026, "goats").lineage("smaller", Preset("goat-1m", llama(2, 64, 2, 128), alias="goat")))
"""


@pytest.fixture
def with_packages(tmp_path: Path) -> dict[str, str]:
    """The environment in which two packages are installed, of which one is broken."""
    texts = {"goats": PACKAGED, "broken": "raise ValueError('no such thing:\\n\x1b[31mred')"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(f"[anyformer]\nmine = {name}\n", encoding="utf-8")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")]),
        "ANYFORMER_CACHE": str(tmp_path / "cache"),
    }


def test_installed_packages_add_theirs_and_a_broken_one_is_left_out(with_packages: dict[str, str]) -> None:
    asked = "import anyformer as af; print(af.preset('goat').name, af.preset('gpt2').name, af.presets('goat'))"
    for words, said in (
        (("-m", "anyformer", "diff", "gpt2", "goat", "--lineage"), "smaller"),
        (("-c", asked), "goat-1m gpt2 ('goat-1m',)"),
    ):
        done = subprocess.run([sys.executable, *words], env=with_packages, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        message = "ValueError: no such thing: \\x1b[31mred"
        assert done.stderr == f"broken: its entry point 'mine' (broken) is left out: {message}\n"
