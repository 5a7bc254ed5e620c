"""Lines in, lines out: each line is answered as it would be alone, blank ones by blank ones, by function and command."""

import gzip
import json
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import InputError, TextError, UsageError
from anyformer.families import preset
from anyformer.generation import BeamSearch, Sampling, generate_text
from anyformer.inference.writing import batches, bleu, translate
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import TableSpec
from anyformer.text import Tokenizer
from tests.cli.running import outcome, run
from tests.laws.models import randomised
from tests.laws.weights import edited

LINES = ["Ein Hund.", "", "Zwei Hunde laufen im Schnee und ein Kind lacht.", "   ", "Ja", "Ein Mann mit Hut"]
SEARCH = BeamSearch(3, 0.6)


def model_of(name: str) -> tuple[Transformer, Tokenizer]:
    tokenizer = Tokenizer.train(LINES, 300)
    spec = edited(shrink(preset(name).spec), TableSpec, lambda table: table.but(rows=tokenizer.vocab_size))
    return randomised(spec), tokenizer


@pytest.fixture(scope="module")
def both() -> tuple[Transformer, Tokenizer]:
    return model_of("transformer-base")


@pytest.fixture(scope="module")
def directory(both: tuple[Transformer, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "out"
    af.save(both[0], path, tokenizer=both[1])
    return path


@pytest.mark.parametrize("search", [None, SEARCH], ids=["greedy", "beams"])
def test_each_line_is_answered_as_it_would_be_alone(
    both: tuple[Transformer, Tokenizer], search: BeamSearch | None
) -> None:
    answers = translate(*both, LINES, search=search, max_new_tokens=8, batch_tokens=60)
    assert len(answers) == len(LINES)
    assert (answers[1], answers[3]) == ("", "")
    for line, answer in zip(LINES, answers, strict=True):
        if line.strip():
            (alone,) = generate_text(*both, [line], max_new_tokens=8, search=search)
            assert answer == " ".join(alone.text.split("\n")).strip()
            assert "\n" not in answer
    assert len(set(answers)) > 2


def test_a_search_differs_from_greedy(both: tuple[Transformer, Tokenizer]) -> None:
    assert translate(*both, LINES, search=SEARCH) != translate(*both, LINES)


def test_batches_hold_every_line_once_and_pad_to_no_more_than_they_may() -> None:
    lengths = dict(enumerate([3, 9, 1, 4, 4, 20, 2]))
    found = batches(lengths, 12)
    assert sorted(i for batch in found for i in batch) == list(range(7))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 12 for batch in found)
    assert len(found) == 4  # 1 2 3, 4 4, 9, 20


def test_what_cannot_be_translated_is_refused(both: tuple[Transformer, Tokenizer]) -> None:
    with pytest.raises(InputError, match="has no encoder"):
        translate(*model_of("gpt2"), LINES)
    with pytest.raises(InputError, match=r"line 3 of the source is \d+ tokens long, beyond the 64 positions"):
        translate(*model_of("bart-base"), ["Ja", "", "lang " * 90])
    with pytest.raises(InputError, match="beams search for the likeliest text"):
        generate_text(*both, ["Ja"], sampling=Sampling(0.5), search=SEARCH)


def test_the_command_answers_a_file_line_by_line(
    directory: Path, both: tuple[Transformer, Tokenizer], tmp_path: Path
) -> None:
    source = tmp_path / "source.txt.gz"
    source.write_bytes(gzip.compress("\n".join(LINES).encode()))
    options = ("generate", "--model", str(directory), "--data", str(source), "--device", "cpu")
    expected = translate(*both, LINES, search=SEARCH)
    status, out, err = outcome(*options, "--beams", "3", "--length-penalty", "0.6", "--json")
    assert (status, err, json.loads(out)["lines"]) == (0, "", expected)
    status, out, _ = outcome(*options)
    assert status == 0
    assert out.split("\n")[1] == "" == out.split("\n")[-1]
    assert len(out.split("\n")) == len(LINES) + 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("Ja", "--beams", "0"), "'0' is less than 1"),
        (("Ja", "--beams", "3", "--temperature", "0.7"), "beams search for the likeliest text"),
        (("Ja", "--data", __file__), "--data takes no PROMPT"),
    ],
)
def test_bad_options_are_refused_in_one_line(directory: Path, options: tuple[str, ...], said: str) -> None:
    result = run("generate", "--model", directory, *options, "--device", "cpu")
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_file_without_a_line_is_refused(directory: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "empty.txt").touch()
    result = run("generate", "--model", directory, "--data", empty)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {empty} is empty; give a file with a text a line\n"


def test_files_say_how_lines_are_answered(directory: Path, both: tuple[Transformer, Tokenizer], tmp_path: Path) -> None:
    """As `generate` and `evaluate` are asked by --as-released; a file that draws is of no use there."""
    said, how = (
        {"num_beams": 3, "length_penalty": 0.6, "max_length": 9, "no_repeat_ngram_size": 1},
        Sampling(no_repeat_ngram_size=1),
    )
    released = tmp_path / "released"
    released.mkdir()
    for file in directory.iterdir():
        (released / file.name).write_bytes(file.read_bytes())
    (released / "generation_config.json").write_text(json.dumps(said))
    (tmp_path / "de").write_text("\n".join(LINES))
    (tmp_path / "en").write_text("\n".join(line or "-" for line in LINES))
    expected = translate(*both, LINES, search=SEARCH, sampling=how, max_new_tokens=8)
    assert expected != translate(*both, LINES, search=SEARCH, max_new_tokens=8)
    status, out, err = outcome(
        "generate",
        "--model",
        str(released),
        "--data",
        str(tmp_path / "de"),
        "--as-released",
        "--json",
        "--device",
        "cpu",
    )
    assert (status, json.loads(out)["lines"]) == (0, expected)
    assert "beams 3, length_penalty 0.6" in err
    (tmp_path / "de").write_text("\n".join(filter(str.strip, LINES)))
    (tmp_path / "en").write_text("\n".join(filter(str.strip, LINES)))
    files = (
        "evaluate",
        str(released),
        "--source",
        str(tmp_path / "de"),
        "--target",
        str(tmp_path / "en"),
        "--device",
        "cpu",
    )
    status, out, _ = outcome(*files, "--bleu", "--as-released", "--json")
    lines = list(filter(str.strip, LINES))
    assert (status, json.loads(out)["bleu"]) == (
        0,
        bleu([text for text, line in zip(expected, LINES, strict=True) if line.strip()], lines).score,
    )
    for options, says in (
        (("--as-released",), "give --bleu too"),
        (("--bleu", "--as-released", "--beams=2"), "leave --beams and --length-penalty out"),
    ):
        status, _, err = outcome(*files, *options)
        assert (status, says in err) == (2, True)
    (released / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    status, _, err = outcome(*files, "--bleu", "--as-released")
    assert (status, "lines are answered by their likeliest texts" in err) == (2, True)


def test_bleu_is_a_score_with_its_signature() -> None:
    """By hand: one of two sentences right, the other without a common word; 4-grams 1 of 2, and so on down."""
    same = bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
    assert same.score == pytest.approx(100.0)
    assert "case:mixed" in same.signature
    assert "tok:13a" in same.signature
    half = bleu(["the cat sat on", "dogs bark very loud"], ["the cat sat on", "we saw it once"])
    assert half.score == pytest.approx(50.0)
    with pytest.raises(TextError, match="1 translations have 2 references"):
        bleu(["a"], ["a", "b"])


def test_without_sacrebleu_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UsageError, match=r"anyformer\[translation\]"):
        bleu(["a"], ["a"])


def test_evaluate_tells_it_beside_the_loss(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "de").write_text("Ein Hund.\nJa\n")
    (tmp_path / "en").write_text("A dog.\nYes\n")
    files = ("--source", str(tmp_path / "de"), "--target", str(tmp_path / "en"))
    status, out, err = outcome(
        "evaluate", str(directory), *files, "--bleu", "--beams", "2", "--device", "cpu", "--json"
    )
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told["loss"] > 0
    assert 0 <= told["bleu"] <= 100
    assert "version:" in told["bleu_signature"]
    for options, says in (("--bleu", "--bleu compares translations"), ("--beams=2", "give --bleu too")):
        result = run("evaluate", directory, "--data", __file__, options)
        assert (result.exit_code, says in result.stderr) == (2, True)
