"""Tokens of languages beside sources and before answers, beside transformers: what is read, written, learnt; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, M2M100ForConditionalGeneration, MBart50Tokenizer, MBartTokenizer, NllbTokenizer
from transformers.models.bart.modeling_bart import shift_tokens_right

import anyformer as af
from anyformer.errors import TextError, UsageError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.generation import BeamSearch, generate_text
from anyformer.hub import load, save
from anyformer.resizing import shrink
from anyformer.spec import TableSpec
from anyformer.text import EncodedPairs, ParallelCorpus, Tokenizer
from anyformer.text.prompts import encode_source
from tests.cli.running import answer, refused, run
from tests.laws.models import randomised
from tests.laws.weights import filled, telling

TEXTS = ["ein Hund und zwei Katzen", "a dog and two cats", "un chien et deux chats"]
ROLES = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
CLASSES = {
    NllbTokenizer: ("eng_Latn", "fra_Latn"),
    MBart50Tokenizer: ("en_XX", "fr_XX"),
    MBartTokenizer: ("en_XX", "fr_XX"),
}


@pytest.fixture(scope="module", params=CLASSES, ids=lambda each: each.__name__)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator with the tokenizer of a class that knows languages, as it is released."""
    folder = tmp_path_factory.mktemp("multilingual")
    letters = sorted({*"".join(TEXTS), "▁"} - {" "})
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if request.param is NllbTokenizer:
        vocab = {piece: i for i, piece in enumerate([*special, *letters])}
        theirs = NllbTokenizer(vocab=vocab, merges=[])
    else:
        theirs = request.param(vocab=[(piece, 0.0 if i < 4 else -2.0) for i, piece in enumerate([*special, *letters])])
    theirs.save_pretrained(folder)
    ours = Tokenizer.load(folder)
    spec = changed(shrink(preset("nllb-200-distilled-600m").spec), TableSpec, rows=ours.vocab_size)
    save(randomised(spec), folder / "model", ours)
    own = {ours.encode(each, specials=True)[0] for each in CLASSES[request.param]}
    ends = [2, *({*range(4, ours.vocab_size, 2)} - own)]  # so many that answers of several lengths are compared
    said = {"decoder_start_token_id": 2, "eos_token_id": ends, "pad_token_id": 1}
    (folder / "model" / "generation_config.json").write_text(json.dumps(said))
    return folder / "model"


def languages(directory: Path) -> tuple[str, str]:
    return CLASSES[type(AutoTokenizer.from_pretrained(directory))]


def test_texts_and_answers_of_languages_are_those_of_transformers(directory: Path) -> None:
    """Both ways, greedily and by search, whose lengths count the language."""
    model, tokenizer = load(directory)
    assert tokenizer is not None
    theirs: Any = M2M100ForConditionalGeneration.from_pretrained(directory).eval()
    lengths = set[int]()
    for source, target in (languages(directory), languages(directory)[::-1]):
        ours = tokenizer.between(source, target)
        words = AutoTokenizer.from_pretrained(directory, src_lang=source, tgt_lang=target)
        language, opening = words.convert_tokens_to_ids(target), ours.answer_opening
        # mBART's card has it read first, those of the others have it written first.
        first = {("decoder_start_token_id" if isinstance(words, MBartTokenizer) else "forced_bos_token_id"): language}
        for text in TEXTS:
            ids = words(text, return_tensors="pt").input_ids
            assert encode_source(ours, text) == ids[0].tolist()
            for search in (None, BeamSearch(3, 2.0), BeamSearch(3, -1.0, "first"), BeamSearch(2, 0.3, "bound")):
                how = {} if search is None else {"num_beams": search.beams, "length_penalty": search.length_penalty}
                stopping = {"estimate": False, "first": True, "bound": "never"}
                early = {} if search is None else {"early_stopping": stopping[search.stopping]}
                with torch.no_grad():
                    whole = theirs.generate(
                        ids,
                        max_new_tokens=12 + len(opening) - 1,
                        forced_eos_token_id=None,
                        **first,
                        **how,
                        **early,
                    )[0].tolist()
                (found,) = generate_text(model, ours, [text], max_new_tokens=12, search=search)
                lengths.add(len(found.token_ids))
                ended = whole[-1] in ours.closing_ids
                assert found.ended_by == ("end_of_text" if ended else "length")
                assert [*opening, *found.token_ids] == whole[: len(whole) - ended]
    assert len(lengths) > 1


def test_pairs_of_languages_are_learnt_as_transformers_labels_them(directory: Path) -> None:
    source, target = languages(directory)
    tokenizer = Tokenizer.load(directory).between(source, target)
    words = AutoTokenizer.from_pretrained(directory, src_lang=source, tgt_lang=target)
    pairs = EncodedPairs(ParallelCorpus(tuple(zip(TEXTS, TEXTS[::-1], strict=True))), tokenizer)
    for i, (left, right) in enumerate(zip(TEXTS, TEXTS[::-1], strict=True)):
        batch = pairs.batch(np.array([i]))
        expected = words(left, text_target=right, return_tensors="pt")
        assert batch.source_ids.tolist() == expected.input_ids.tolist()
        # mBART has a target's language behind it too, rolls it to the front, and learns it once more at the end.
        labels = expected.labels[:, :-1] if isinstance(words, MBartTokenizer) else expected.labels
        assert batch.labels.tolist() == labels.tolist()
        assert batch.target_ids.tolist() == shift_tokens_right(labels, 1, tokenizer.answer_opening[0]).tolist()


def test_a_run_and_its_tokenizer_keep_their_languages(tmp_path: Path) -> None:
    (tmp_path / "left").write_text("ein Hund\nzwei Katzen\n" * 40)
    (tmp_path / "right").write_text("a dog\ntwo cats\n" * 40)
    result = af.train(
        "transformer-base",
        source=tmp_path / "left",
        target=tmp_path / "right",
        n_params=60_000,
        vocab_size=280,
        source_language="<de>",
        target_language="<en>",
        tokens=2000,
        batch_tokens=200,
        out=tmp_path / "run",
        device="cpu",
    )
    assert result.out is not None
    _, tokenizer = load(tmp_path / "run")
    assert tokenizer is not None
    de, en = (tokenizer.encode(each, specials=True) for each in ("<de>", "<en>"))
    assert encode_source(tokenizer, "ein Hund") == [*de, *tokenizer.encode("ein Hund"), tokenizer.end_of_text]
    assert tokenizer.answer_opening == [tokenizer.start_of_answer, *en]
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "tokenizer")("ein Hund").input_ids == encode_source(
        tokenizer, "ein Hund"
    )
    turned = af.generate(
        tmp_path / "run", None, "a dog", max_new_tokens=3, source_language="<en>", target_language="<de>"
    )
    assert turned == af.generate(tmp_path / "run", tokenizer.between("<en>", "<de>"), "a dog", max_new_tokens=3)
    with pytest.raises(TextError, match=r"no special token '<fr>' names a language in this vocabulary"):
        af.evaluate(tmp_path / "run", source=tmp_path / "left", target=tmp_path / "right", target_language="<fr>")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            ("<s>", "</s>"),
            "rules put <s> </s> around a text, and no language among them; leave the source's language out",
        ),
        (("<a>", "<b>"), "rules put <a> <b> around a text, and no language among them"),
    ],
)
def test_rules_without_a_place_for_a_language_are_refused(rules: tuple[str, str], said: str, tmp_path: Path) -> None:
    from tokenizers import processors

    found = Tokenizer.train(TEXTS, 270).with_specials(["<a>", "<b>", "<s>", "</s>"])
    inner = found._inner
    ids = [(each, inner.token_to_id(each)) for each in rules]
    inner.post_processor = processors.TemplateProcessing(single=[rules[0], "$A", rules[1]], special_tokens=ids)
    with pytest.raises(TextError, match=said):
        Tokenizer(inner, ROLES).between("<a>")


def test_the_command_line(directory: Path, tmp_path: Path) -> None:
    source, target = languages(directory)
    told = ["--source-language", source, "--target-language", target]
    how: Any = {"source_language": source, "target_language": target}
    expected = af.generate(directory, None, TEXTS[0], max_new_tokens=5, **how)
    asked = ("generate", "--model", directory, "--max-new-tokens", 5, *told)
    assert answer(*asked, TEXTS[0])["text"] == expected
    (tmp_path / "lines").write_text(f"{TEXTS[0]}\n")
    assert answer(*asked, "--data", tmp_path / "lines")["lines"] == [" ".join(expected.split())]
    refused(run(*asked[:-1], "xx", "a"), "no special token 'xx' names a language")
    (tmp_path / "text.txt").write_text("a dog\n" * 50)
    train = (
        "train",
        "gpt2",
        "--data",
        tmp_path / "text.txt",
        "--params",
        "10k",
        "--source-language",
        "<de>",
        "--dry-run",
    )
    refused(run(*train), "CausalLM, has a field 'source_language'")
    refused(run("evaluate", directory, "--data", tmp_path / "text.txt", *told), "are of translations")


def test_a_decoder_alone_is_told_to_have_its_languages_in_the_prompt() -> None:
    spec = changed(shrink(preset("llama2-7b").spec), TableSpec, rows=270)
    with pytest.raises(UsageError, match="this model has no encoder; say it in the prompt"):
        af.generate(filled(spec, telling(spec)), Tokenizer.train(TEXTS, 270), "a", target_language="<en>")
