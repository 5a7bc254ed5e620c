"""`anyformer generate`: from a directory to text on the terminal, and one clear line where that cannot be."""

import json
from functools import partial
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import UsageError
from anyformer.generation import CompiledStep, Sampling, generate_text
from anyformer.screen import visible
from anyformer.text import Tokenizer
from anyformer.text.filling import KNOWN, ending_middles, prompt_between
from tests.cli.running import answer, outcome
from tests.generation.test_text import TEXTS, sized
from tests.laws.models import SHRUNK, randomised


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.train(TEXTS, 320)
    spec = next(spec for name, spec in SHRUNK.items() if "llama2" in name)
    af.save(randomised(sized(spec, tokenizer.vocab_size)), path, tokenizer=tokenizer)
    return path


run = partial(outcome, "generate")


def test_the_text_is_that_of_the_function(directory: Path) -> None:
    model, tokenizer = af.load(directory)
    assert tokenizer is not None
    sampled = {"max_new_tokens": 20, "temperature": 0.8, "top_k": 30, "top_p": 0.9, "seed": 4}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sampled.items()]
    text = af.generate(model, tokenizer, "the fox", **sampled)
    assert run("--model", str(directory), "the fox", *options, "--device=cpu") == (0, f"the fox{visible(text)}\n", "")
    lowered = {"max_new_tokens": 20, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.4}
    greedy = af.generate(model, tokenizer, "the fox", **lowered)  # type: ignore[arg-type]
    options_lowered = [f"--{name.replace('_', '-')}={value}" for name, value in lowered.items()]
    assert (
        run("--model", str(directory), "the fox", *options_lowered, "--device=cpu")[1] == f"the fox{visible(greedy)}\n"
    )
    assert greedy != af.generate(model, tokenizer, "the fox", max_new_tokens=20)
    stop = text[5:8]
    status, stdout, _ = run("--model", str(directory), "the fox", *options, "--stop", stop, "--json", "--device=cpu")
    answer = json.loads(stdout)
    assert status == 0
    assert answer["text"] == text[: text.index(stop)]
    assert (answer["version"], answer["prompt"], answer["ended_by"]) == (1, "the fox", "stop")
    assert tokenizer.decode(answer["token_ids"]).startswith(answer["text"])


def test_a_compiled_step_writes_the_same(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch.compile's own interpreter here; `test_compiled.py` has the compiler, among the slow tests."""
    monkeypatch.setattr("anyformer.generation.CompiledStep", partial(CompiledStep, backend="eager"))
    asked = ("--model", str(directory), "the fox", "--max-new-tokens=6", "--device=cpu")
    status, stdout, stderr = run(*asked, "--compile")
    assert (status, stdout) == run(*asked)[:2]
    assert stderr.startswith("a step of ")
    assert "is compiled before the second token" in stderr
    assert stderr.count("\n") == 1
    for other in (("--beams=2",), ("--lookup=3",), ("--data", __file__)):
        status, stdout, stderr = run(*(asked if other[0] != "--data" else asked[:2]), "--compile", *other)
        assert (status, stdout, stderr.count("\n")) == (2, "", 1)
        assert "--compile writes a token a pass" in stderr
    status, stdout, _ = run(*asked, "--compile", "--dtype=int4")
    assert (status, stdout.startswith("the fox")) == (0, True)


def test_texts_are_held_to_a_form(directory: Path, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.gbnf"
    schema.write_text('{"type": "array", "items": {"enum": [1, "ä"]}, "minItems": 2, "maxItems": 3}')
    grammar.write_text('root ::= "yes" | "no"\n')
    asked = ("the fox: ", "--model", str(directory), "--max-new-tokens=60", "--device=cpu")
    for given in (str(schema), schema.read_text()):
        for more in (), ("--temperature=1", "--seed=3"), ("--beams=2",), ("--lookup=3",):
            status, stdout, _ = run(*asked, "--json-schema", given, *more)
            assert status == 0
            assert stdout.startswith("the fox: ")
            value = json.loads(stdout.removeprefix("the fox: "))
            assert set(value) <= {1, "ä"}
            assert 2 <= len(value) <= 3
    assert run(*asked, "--grammar", str(grammar))[1] in ("the fox: yes\n", "the fox: no\n")
    assert run(*asked, "--regex", "[^ -~]x")[1].endswith("x\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x00\xff")
    empty = tmp_path / "empty.gbnf"
    empty.write_text("\n")
    for arguments, words in (
        (("--json-schema", "{"), "--json-schema is not JSON"),
        (("--json-schema", str(grammar)), "answer.gbnf is not JSON"),
        (("--json-schema", "nowhere"), "File 'nowhere' does not exist"),
        (("--json-schema", '{"type": 3}'), "type must be a string or array of strings"),
        (("--regex", "(a"), "unclosed group"),
        (("--grammar", str(binary)), "is binary, not text"),
        (("--grammar", str(schema)), "error: grammar: "),
        (("--grammar", str(empty)), "empty.gbnf is empty; write the rules of a grammar into it"),
        (("--regex", "a", "--grammar", str(grammar)), "leave one of regex and grammar out"),
    ):
        status, stdout, stderr = run(*asked, *arguments)
        assert (status, stdout) == (2, ""), stderr
        assert words in stderr
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1


def test_a_preset_has_no_weights() -> None:
    assert run("--model", "llama2-7b", "x") == (
        2,
        "",
        "error: llama2-7b is an architecture without weights; give the directory of a trained model\n",
    )


def test_what_cannot_start_is_one_line(directory: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    af.save(af.load(directory)[0], bare)
    for arguments, words in (
        (("--model", str(tmp_path / "nowhere")), "nowhere"),
        (("--model", str(bare)), "has no tokenizer"),
        (("--model", str(directory), "--device", "tpu"), "no device 'tpu'"),
        (("--model", str(directory), "--top-p", "2"), "'2' is no number from 0 to 1"),
        (("--model", str(directory), "--stop", ""), "not empty"),
        (("--model", str(directory), "--length-penalty", "2"), "give beams, at least 2"),
        (("--model", str(directory), "--stopping", "first"), "give beams, at least 2"),
        (("--model", str(directory), "--top-k", "3"), "give a temperature"),
        (("--model", str(directory), "--top-p", "0.5"), "give a temperature"),
        (("--model", str(directory), "--min-p", "0.5"), "give a temperature"),
        (("--model", str(directory), "--repetition-penalty", "0"), "'0' is no number from"),
        (("--model", str(directory), "--beams", "2", "--temperature", "1"), "beams search for the likeliest text"),
        (
            ("--model", str(directory), "--min-new-tokens", "60"),
            "min_new_tokens = 60 is more than the 50 that are written",
        ),
        (("--model", str(directory), "--min-new-tokens", "3", "--max-new-tokens", "2"), "is more than the 2 that are"),
    ):
        status, stdout, stderr = run(*arguments, "prompt")
        assert (status, stdout.removeprefix("prompt")) == (2, ""), stderr
        assert words in stderr
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1


def test_what_stands_before_a_suffix(directory: Path, tmp_path: Path) -> None:
    """Between the two on the terminal; in JSON by itself. A mark ends it, as the text's end does."""
    model, plain = af.load(directory)
    assert plain is not None
    by, filling = plain.with_specials(KNOWN[0]), tmp_path / "filling"
    af.save(randomised(sized(model.spec, by.vocab_size)), filling, tokenizer=by)
    model, _ = af.load(filling)
    asked = ("if x", "--suffix", " return x", "--model", str(filling), "--device=cpu")
    ids = prompt_between(by, "if x", " return x")
    (drawn,) = generate_text(model, ending_middles(by), [ids], max_new_tokens=20, sampling=Sampling(1.0), seed=3)
    options = ("--max-new-tokens=20", "--temperature=1", "--seed=3")
    assert run(*asked, *options) == (0, f"if x{visible(drawn.text)} return x\n", "")
    said = answer("generate", *asked, *options)
    assert (said["prompt"], said["suffix"], said["text"]) == ("if x", " return x", drawn.text)
    how = {"suffix": " return x", "max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    assert af.generate(model, by, "if x", **how) == drawn.text
    assert af.generate(model, by, ["if x", "y"], **how)[0] == drawn.text
    assert answer("generate", "if x", *asked[3:], *options)["suffix"] is None
    for more in ("--beams=2",), ("--lookup=3",):
        assert run(*asked, "--max-new-tokens=6", *more)[0] == 0
    (filling / "generation_config.json").write_text(json.dumps({"max_length": len(ids) + 4, "eos_token_id": 0}))
    assert len(answer("generate", *asked, "--as-released")["token_ids"]) <= 4
    for arguments, words in (
        ((*asked, "--chat"), "leave --chat and --data out, or --suffix"),
        ((*asked[1:], "--data", __file__), "leave --chat and --data out, or --suffix"),
        ((*asked[:4], str(directory), "--device=cpu"), "has no tokens that mark a middle"),
    ):
        status, stdout, stderr = run(*arguments)
        assert (status, stdout, stderr.count("\n")) == (2, "", 1), stderr
        assert words in stderr


def test_a_model_with_an_encoder_fills_nothing() -> None:
    by = Tokenizer.train(TEXTS, 320).with_specials(KNOWN[0])
    spec = next(spec for name, spec in SHRUNK.items() if "t5-small" in name)
    with pytest.raises(UsageError, match=r"a suffix is for decoders .* this model has an encoder"):
        af.generate(randomised(sized(spec, by.vocab_size)), by, "a", suffix="b")
