"""Weights read as those of a changed model, `DIR+mask=Everything`: the same tensors, other masks, positions, scales."""

from pathlib import Path

import pytest
import torch

import anyformer
from anyformer.errors import AnyformerError, SpecError
from anyformer.families import preset
from anyformer.hub import convert, load, load_into, load_spec, load_tokenizer, save
from anyformer.model import build
from anyformer.resizing import resize, shrink
from anyformer.text import Tokenizer
from tests.laws.models import ids_for, randomised

TEXT = ["the cat sits on the mat"]
CHANGE = "+mask=Everything+theta=77"


@pytest.fixture(params=["hf", "anyformer"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tokenizer = Tokenizer.train(TEXT, 280)
    spec = resize(shrink(preset("llama2-7b").spec), vocab_size=tokenizer.vocab_size)
    return save(randomised(spec), tmp_path / "model", tokenizer, form=request.param).path


def test_the_tensors_are_the_files(folder: Path, tmp_path: Path) -> None:
    plain, _ = load(folder)
    model, tokenizer = load(f"{folder}{CHANGE}")
    assert model.spec == load_spec(f"{folder}{CHANGE}") == anyformer.vary(plain.spec, mask="Everything", theta=77)
    assert tokenizer is not None
    assert load_tokenizer(f"{folder}{CHANGE}") is not None
    expected = build(model.spec)
    expected.load_state_dict(plain.state_dict())
    ids = ids_for(model.spec, 2, 7)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected(ids).logits)
        assert (model(ids).logits - plain(ids).logits).abs().max() > 1e-2
    convert(f"{folder}{CHANGE}", tmp_path / "written")
    again, _ = load(tmp_path / "written")
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, expected(ids).logits)
    assert torch.equal(anyformer.embed(f"{folder}{CHANGE}", texts=TEXT), anyformer.embed(model, tokenizer, TEXT))


def test_training_begins_with_them(folder: Path) -> None:
    model = build(load_spec(f"{folder}{CHANGE}"), seed=1)
    assert load_into(model, f"{folder}{CHANGE}") == []
    plain, _ = load(folder)
    assert all(torch.equal(mine, own) for mine, own in zip(model.parameters(), plain.parameters(), strict=True))
    with pytest.raises(AnyformerError, match="of another architecture"):
        load_into(model, folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "d_ff=12",
            r"would be of \[12, 32\], and in the files it is of \[\d+, 32\]; given weights leave room for changes",
        ),
        ("norm=LayerNorm+biases=yes", "would be of|is not there|biases"),
        ("nothing=1", "nothing"),
    ],
)
def test_tensors_stay_as_they_are(folder: Path, change: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        load(f"{folder}+{change}")
    assert "\n" not in str(caught.value)
