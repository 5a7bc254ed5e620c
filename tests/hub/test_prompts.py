"""What sentence-transformers' directories have put before texts: by name, by default; and vectors cut to their first numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import embed
from anyformer.errors import AnyformerError
from anyformer.families import preset
from anyformer.families.heads import sentence_embedding
from anyformer.hub import convert, load, save
from anyformer.resizing import resize, shrink
from anyformer.text import WordPiece
from tests.hub.edits import settings
from tests.laws.models import randomised

TEXTS = ["the cat sits on the mat", "a dog"]
QUERY = "search query: "
FILE = "config_sentence_transformers.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = WordPiece(vocab_size=60).train([*TEXTS, QUERY])
    spec = resize(shrink(preset("distilbert-base").spec), vocab_size=tokenizer.vocab_size)
    path = save(randomised(spec.but(heads=(sentence_embedding(),))), tmp_path / "model", tokenizer).path
    prompted(path, {"prompts": {"query": QUERY, "document": ""}, "default_prompt_name": None})
    return path


def prompted(path: Path, said: Any) -> None:
    (path / FILE).write_text(json.dumps(said))


def test_a_prompt_goes_before_each_text(folder: Path) -> None:
    plain, asked = embed(folder, texts=TEXTS), embed(folder, texts=[QUERY + text for text in TEXTS])
    assert (plain - asked).abs().max() > 1e-2
    assert torch.equal(embed(folder, texts=TEXTS, prompt=QUERY), asked)
    assert torch.equal(embed(folder, texts=TEXTS, prompt_name="query"), asked)
    assert torch.equal(embed(folder, texts=TEXTS, prompt=""), plain)
    assert torch.equal(embed(folder, texts=TEXTS, prompt_name="document"), plain)


def test_the_usual_one_needs_no_name(folder: Path) -> None:
    prompted(folder, {"prompts": {"query": QUERY}, "default_prompt_name": "query"})
    asked = embed(folder, texts=TEXTS, prompt=QUERY)
    assert torch.equal(embed(folder, texts=TEXTS), asked)
    assert not torch.equal(embed(folder, texts=TEXTS, prompt=""), asked)
    model, tokenizer = load(folder)  # which says nothing of prompts
    assert torch.equal(embed(model, tokenizer, TEXTS), embed(folder, texts=TEXTS, prompt=""))


@pytest.mark.parametrize("form", ["hf", "anyformer"])
def test_prompts_go_where_the_model_goes(folder: Path, tmp_path: Path, form: Any) -> None:
    convert(folder, tmp_path / "converted", form=form)
    model, tokenizer = load(folder)
    save(model, tmp_path / "saved", tokenizer, form=form)
    for place in ("converted", "saved"):
        assert (tmp_path / place / FILE).read_bytes() == (folder / FILE).read_bytes()
        found = embed(tmp_path / place, texts=TEXTS, prompt_name="query")
        torch.testing.assert_close(found, embed(folder, texts=TEXTS, prompt=QUERY))


@pytest.mark.parametrize(
    ("said", "way", "says"),
    [
        (
            {"prompts": {"query": QUERY}},
            {"prompt_name": "quer"},
            r"no prompt 'quer' \(did you mean 'query'\?\); there are query",
        ),
        ({"prompts": {}}, {"prompt_name": "query"}, "no prompt 'query'; it has none; give the prompt itself"),
        (
            {"prompts": {"query": QUERY}},
            {"prompt_name": "query", "prompt": ""},
            "both a prompt and the name of one, 'query'",
        ),
        ({"prompts": ["query"]}, {}, "prompts must be a table of texts by name"),
        ({"prompts": {"query": 3}}, {}, "prompts must be a table of texts by name"),
        ({"prompts": {}, "default_prompt_name": "query"}, {}, "default_prompt_name = 'query' is none of its prompts"),
        ([], {}, "holds no table of settings"),
    ],
)
def test_what_is_wrong_with_prompts(folder: Path, said: Any, way: dict[str, Any], says: str) -> None:
    prompted(folder, said)
    with pytest.raises(AnyformerError, match=says) as caught:
        embed(folder, texts=TEXTS, **way)
    assert "\n" not in str(caught.value)


def test_texts_pooled_without_their_prompt_are_refused(folder: Path) -> None:
    """INSTRUCTOR's: its mean leaves out the tokens of what was put before."""
    settings(folder / "1_Pooling", include_prompt=False)
    assert embed(folder, texts=TEXTS).shape[0] == len(TEXTS)
    with pytest.raises(AnyformerError, match="pools texts without their prompt"):
        embed(folder, texts=TEXTS, prompt_name="query")


def test_the_first_numbers_of_a_vector_are_kept_at_length_1(folder: Path) -> None:
    whole = embed(folder, texts=TEXTS)
    found = embed(folder, texts=TEXTS, dimensions=8)
    torch.testing.assert_close(found, whole[:, :8] / whole[:, :8].norm(dim=1, keepdim=True))
    torch.testing.assert_close(embed(folder, texts=TEXTS, dimensions=whole.shape[1]), whole)
    for n in (0, whole.shape[1] + 1):
        with pytest.raises(AnyformerError, match=rf"dimensions = {n}: a vector of this model has {whole.shape[1]}"):
            embed(folder, texts=TEXTS, dimensions=n)
