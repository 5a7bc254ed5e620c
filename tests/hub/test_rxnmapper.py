"""A real ALBERT, trained on reactions, as `pip install --no-deps rxnmapper==0.4.3` brings it: it fills in masked atoms."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from anyformer.errors import CheckpointError
from anyformer.hub import load
from anyformer.model import Transformer

FOUND = importlib.util.find_spec("rxnmapper")
PLACES = list(FOUND.submodule_search_locations or ()) if FOUND is not None else []
FOLDERS = [file.parent for place in PLACES for file in Path(place).glob("models/transformers/*/pytorch_model.bin")]

pytestmark = pytest.mark.skipif(not FOLDERS, reason="pip install --no-deps rxnmapper==0.4.3 brings the model")

REACTIONS = [
    "CC(=O)O.OCC>>CC(=O)OCC",  # esterification
    "CC(=O)Cl.NCC>>CC(=O)NCC",  # amide
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",  # Suzuki
    "CC(C)=O.[BH4-].[Na+]>>CC(C)O",  # reduction
    "C=CC.Br>>CC(C)Br",  # addition
    "Oc1ccccc1.CI>>COc1ccccc1",  # Williamson's ether
]
ATOMS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as safetensors: the package reads no pickle, this test reads one as plain tensors."""
    out = tmp_path_factory.mktemp("albert")
    weights = torch.load(FOLDERS[0] / "pytorch_model.bin", map_location="cpu", weights_only=True)
    save_file({name: tensor.clone() for name, tensor in weights.items()}, str(out / "model.safetensors"))
    (out / "config.json").write_text((FOLDERS[0] / "config.json").read_text())
    return out


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Transformer, Any]:
    return load(folder)[0], transformers.AlbertForMaskedLM.from_pretrained(folder).eval()


def tokens(words: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask [reaction, token], padded on the right."""
    rows = [["[CLS]", *ATOMS.findall(reaction), "[SEP]"] for reaction in REACTIONS]
    width = max(map(len, rows))
    ids = [[words[token] for token in row] + [words["[PAD]"]] * (width - len(row)) for row in rows]
    return torch.tensor(ids), torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])


def test_pickled_weights_are_not_opened_unasked() -> None:
    with pytest.raises(CheckpointError, match="pickled weights only"):
        load(FOLDERS[0])


def test_masked_atoms_are_those_of_transformers(both: tuple[Transformer, Any]) -> None:
    vocabulary = (FOLDERS[0] / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = {word: i for i, word in enumerate(vocabulary)}
    ids, mask = tokens(words)
    ours, theirs = both
    special = torch.tensor([words[word] for word in ("[CLS]", "[SEP]", "[PAD]")])
    right = total = 0
    for offset in range(5):  # every fifth token, then the next ones: each is masked once
        masked = (torch.arange(ids.shape[1]) % 5 == offset) & ~torch.isin(ids, special)
        given = ids.masked_fill(masked, words["[MASK]"])
        with torch.no_grad():
            found, expected = ours(given, mask).logits, theirs(given, attention_mask=mask).logits
        assert (found[masked] - expected[masked]).abs().max() < 1e-4 * expected[masked].abs().max()
        probabilities = (found.softmax(-1) - expected.softmax(-1))[masked]
        assert probabilities.abs().max() < 1e-5
        assert torch.equal(found[masked].argmax(-1), expected[masked].argmax(-1))
        right += int((found[masked].argmax(-1) == ids[masked]).sum())
        total += int(masked.sum())
    sys.stdout.write(f"{right} of {total} masked tokens are right\n")
    assert right > 0.7 * total, "it knows chemistry"


def test_its_layers_are_one(both: tuple[Transformer, Any]) -> None:
    ours, theirs = both
    assert len(ours.spec.stack.blocks) == 12
    assert {block.shared for block in ours.spec.stack.blocks} == {"layer"}
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
