"""`--as-released`: a text is what transformers' `generate` writes by a generation_config.json; what is given beside it wins."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

import anyformer as af
from anyformer.errors import AnyformerError, TextError, UsageError
from anyformer.families import preset
from anyformer.generation import UNSAID, BeamSearch, Sampling, released
from anyformer.generation.penalties import Penalties
from anyformer.resizing import shrink
from anyformer.text import Tokenizer
from anyformer.text.prompts import encode_prompt, encode_source
from tests.cli.running import answer, outcome
from tests.generation.test_text import TEXTS, sized
from tests.laws.weights import filled, telling

PROMPT = "if x > 0, the fox said"
# As released: BART of summaries, Marian, Llama 3, Qwen 2.5, GPT-2, and what none of them says.
SUMMARIES: dict[str, Any] = {
    "num_beams": 4,
    "length_penalty": 2.0,
    "max_length": 24,
    "min_length": 12,
    "no_repeat_ngram_size": 3,
    "early_stopping": True,
    "forced_eos_token_id": 0,
}
TRANSLATIONS = {
    "bad_words_ids": [[5], [0]],
    "num_beams": 3,
    "max_length": 14,
    "forced_eos_token_id": [0],
    "renormalize_logits": True,
}
GREEDY: dict[str, Any] = {"repetition_penalty": 1.1, "min_new_tokens": 6, "max_new_tokens": 15, "temperature": 0.6}
OTHERS = {
    "suppress_tokens": list(range(40)),
    "num_beams": 2,
    "early_stopping": "never",
    "length_penalty": -0.5,
    "repetition_penalty": 1.3,
    "max_length": 40,
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tokenizer, found = Tokenizer.train(TEXTS, 320), {}
    for name in ("llama2-7b", "bart-base"):
        found[name], spec = tmp_path_factory.mktemp(name), sized(shrink(preset(name).spec), tokenizer.vocab_size)
        af.save(filled(spec, telling(spec, least_row=1.0)), found[name], tokenizer)
    return found


def say(directory: Path, said: dict[str, Any]) -> None:
    """Have the directory's generation_config.json say this beside which tokens begin and end a text."""
    path = directory / "generation_config.json"
    ids = {name: value for name, value in json.loads(path.read_text()).items() if name.endswith("_token_id")}
    path.write_text(json.dumps({**{k: v for k, v in ids.items() if not k.startswith("forced")}, **said}))


def theirs(directory: Path, text: str) -> list[int]:
    """What transformers writes of itself."""
    kind: Any = AutoModelForSeq2SeqLM if "bart" in directory.name else AutoModelForCausalLM
    model, tokenizer = kind.from_pretrained(directory), Tokenizer.load(directory)
    ids = (encode_source if "bart" in directory.name else encode_prompt)(tokenizer, text)
    (written,) = model.generate(torch.tensor([ids])).tolist()
    new = written[1 if "bart" in directory.name else len(ids) :]
    ends = [i for i, token in enumerate(new) if token == model.generation_config.eos_token_id]
    return new[: ends[0]] if ends else new


@pytest.mark.parametrize(
    "said", [SUMMARIES, TRANSLATIONS, GREEDY, OTHERS], ids=["sums", "translations", "greedy", "others"]
)
@pytest.mark.parametrize("name", ["llama2-7b", "bart-base"])
def test_texts_are_those_of_transformers(directories: dict[str, Path], name: str, said: dict[str, Any]) -> None:
    directory = directories[name]
    say(directory, said)
    expected = theirs(directory, PROMPT)
    status, stdout, stderr = outcome(
        "generate", "--model", str(directory), PROMPT, "--as-released", "--json", "--device=cpu"
    )
    assert status == 0, stderr
    assert json.loads(stdout)["token_ids"] == expected
    assert stderr.startswith("as released: temperature 0.0")
    assert stderr.count("\n") == 1
    assert af.generate(directory, None, PROMPT, as_released=True) == json.loads(stdout)["text"]
    plain = answer("generate", "--model", directory, PROMPT, "--device=cpu")["token_ids"]
    assert plain != expected


@pytest.mark.parametrize("most", [1, 2, 12])
def test_what_an_answer_always_begins_with_is_one_of_its_new_tokens(directories: dict[str, Path], most: int) -> None:
    """`forced_bos_token_id` is written, so that it counts where a file says how many are; what is asked for comes behind."""
    directory = directories["bart-base"]
    said = {"forced_bos_token_id": 5, "max_new_tokens": most, "min_new_tokens": min(most, 9)}
    say(directory, said)
    expected = theirs(directory, PROMPT)
    assert expected[0] == 5
    written = answer("generate", "--model", directory, PROMPT, "--as-released")
    assert written["token_ids"] == expected[1:]
    asked = outcome("generate", "--model", str(directory), PROMPT, "--as-released", "--json", "--max-new-tokens", "3")
    assert len(json.loads(asked[1])["token_ids"]) == 3
    assert (
        asked[2] == f"as released: temperature 0.0, min_new_tokens {min(most, 9)}, max_new_tokens {most}\n"
    )  # what is found


@pytest.mark.parametrize("said", [SUMMARIES, OTHERS], ids=["sums", "others"])
def test_older_releases_say_it_in_config_json(
    directories: dict[str, Path], tmp_path: Path, said: dict[str, Any]
) -> None:
    """As BART's of summaries do; what is copied from there says it in a file of its own."""
    say(directories["bart-base"], {})
    older = tmp_path / "bart-older"
    older.mkdir()
    for file in directories["bart-base"].iterdir():
        (older / file.name).write_bytes(file.read_bytes())
    ids = json.loads((older / "generation_config.json").read_text())
    (older / "generation_config.json").unlink()
    config = json.loads((older / "config.json").read_text())
    (older / "config.json").write_text(json.dumps({**config, **ids, **said}))
    expected = theirs(older, PROMPT)
    status, stdout, _ = outcome("generate", "--model", str(older), PROMPT, "--as-released", "--json", "--device=cpu")
    assert (status, json.loads(stdout)["token_ids"]) == (0, expected)
    assert outcome("convert", str(older), str(tmp_path / "bart-copied"))[0] == 0
    copied = json.loads((tmp_path / "bart-copied/generation_config.json").read_text())
    assert {name: copied[name] for name in said} == said


def test_what_asks_otherwise_is_named(directories: dict[str, Path], tmp_path: Path) -> None:
    """What a file says is not taken for what a user gave: the line says that the file asks for it, and what to give."""
    directory, line = directories["bart-base"], tmp_path / "line.txt"
    line.write_text("if x\n")
    say(directory, SUMMARIES)
    asked = ("generate", "--model", str(directory), "--as-released")
    for option in (("--lookup", "3"), ("--compile",), ("--chat",)):
        status, _, stderr = outcome(*asked, PROMPT, *option)
        assert (status, stderr.count("\n")) == (2, 1)
        assert "the model's files ask for 4 beams" in stderr
        assert "give --beams 1, or leave --as-released out" in stderr
    assert outcome(*asked, PROMPT, "--lookup", "3", "--beams", "1")[0] == 0
    say(directory, {"do_sample": True, "top_k": 5})
    assert "give --temperature 0, or leave --as-released out" in outcome(*asked, "--data", str(line))[2]
    assert outcome(*asked, "--data", str(line), "--temperature", "0")[0] == 0
    pairs = ("--source", str(line), "--target", str(line), "--bleu", "--as-released")
    assert "the model's files draw tokens" in outcome("evaluate", str(directory), *pairs)[2]


DRAWN: tuple[dict[str, Any], ...] = (
    {"do_sample": True},
    {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    {"do_sample": True, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "no_repeat_ngram_size": 2},
    {"do_sample": True, "top_k": 0, "bad_words_ids": [[5], [0], [6]]},
    {"do_sample": True, "top_k": 64, "top_p": 0.95, "suppress_tokens": [3, 4], "min_new_tokens": 9},
)


@pytest.mark.parametrize("said", DRAWN)
def test_what_is_drawn_is_as_likely_as_there(directories: dict[str, Path], said: dict[str, Any]) -> None:
    """By the processors that transformers makes of the same file; 50 tokens where it is silent."""
    model: Any = AutoModelForCausalLM.from_pretrained(directories["llama2-7b"])
    config: Any = GenerationConfig(**{**GenerationConfig._get_default_generation_params(), **said, "eos_token_id": 0})
    text, logits = torch.tensor([[7, 8, 9, 7, 8]]), torch.randn(1, 320, generator=torch.manual_seed(3)) * 3
    model._prepare_special_tokens(config)
    expected = model._get_logits_processor(config, 3, text)(text, logits.clone()).double().softmax(-1)
    how, search = released({**said, "eos_token_id": 0}).chosen({}, {})
    penalties = Penalties(how, text[:, :3], None, 320, (0,), 20)
    penalties.add(text[:, 3:])
    assert search is None
    torch.testing.assert_close(how.probabilities(penalties.applied(logits)), expected, rtol=1e-4, atol=1e-6)


def test_what_is_given_wins() -> None:
    said = released({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 7})
    assert said.chosen({}, {}) == (Sampling(0.6, 7, 0.9), None)
    assert said.chosen({"temperature": 0.2}, {}) == (Sampling(0.2, 7, 0.9), None)
    assert said.chosen({}, {"beams": 3}) == (Sampling(), BeamSearch(3))
    assert said.chosen({"temperature": 0.0}, {}) == (Sampling(), None)
    assert released(TRANSLATIONS).search == {"beams": 3, "stopping": "estimate", "renormalised": True}
    searched = released(SUMMARIES)
    assert searched.chosen({}, {"length_penalty": 0.5})[1] == BeamSearch(4, 0.5, "first")
    assert searched.chosen({"temperature": 0.5, "no_repeat_ngram_size": 0}, {}) == (Sampling(0.5, last_token=0), None)
    assert searched.chosen({}, {"beams": 1}) == (Sampling(no_repeat_ngram_size=3, last_token=0), None)
    assert searched.chosen({"temperature": 0.0}, {})[1] == BeamSearch(4, 2.0, "first")
    assert searched.behind(2, 1, None).chosen({}, {})[0].min_new_tokens == 10
    assert released({"min_length": 9, "min_new_tokens": 3}).behind(2, 0, None).least == 3
    assert [searched.behind(2, 1, most).most for most in (None, 0, 40)] == [22, 0, 40]
    assert released({"eos_token_id": 3}) == UNSAID
    assert str(searched.of_new_tokens()).endswith("stopping first")
    assert str(UNSAID) == "nothing says how tokens are chosen"
    shown = [str(released({"suppress_tokens": list(range(n))})) for n in (3, 2000)]
    assert shown == ["temperature 0.0, suppressed (0, 1, 2)", "temperature 0.0, suppressed 2,000 tokens"]
    with pytest.raises(UsageError, match="max_length = 24, and 24 tokens stand before; give max_new_tokens"):
        searched.behind(24, 0, None)
    with pytest.raises(AnyformerError, match="beams search for the likeliest text"):
        said.chosen({"temperature": 0.3}, {"beams": 2})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num_beams": 4, "do_sample": True}, "num_beams = 4 draws among beams, which is not done here"),
        ({"typical_p": 0.9}, "typical_p = 0.9 is not done here; leave that out, and say how tokens are chosen"),
        ({"begin_suppress_tokens": [220]}, r"begin_suppress_tokens = \[220\] is not done"),
        ({"bad_words_ids": [[3, 4]]}, r"bad_words_ids = \[\[3, 4\]\] has words of several tokens"),
        ({"bad_words_ids": "no"}, "bad_words_ids = 'no' has words"),
        ({"bad_words_ids": [["x"]]}, r"bad_words_ids = \['x'\] names no token"),
        ({"forced_eos_token_id": [1, 2]}, "forced_eos_token_id = .* too many"),
        ({"do_sample": "yes"}, "do_sample = 'yes' must be true or false"),
        ({"temperature": "hot", "do_sample": True}, "temperature = 'hot' must be a number"),
        ({"temperature": True}, "temperature = True must be a number"),
        ({"temperature": -1, "do_sample": True}, "generation_config.json: temperature = -1 must be 0"),
        ({"num_beams": 2.5}, "num_beams = 2.5 must be a whole number"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping = 'soon' must be true, false or \"never\""),
        ({"num_beams": 2, "early_stopping": []}, r"early_stopping = \[\] must"),
        ({"max_length": -3}, "a length of -3"),
        ({"min_length": 10**30}, "min_length = 1000000.* is beyond 1,000,000,000; leave that out"),
        ({"num_beams": 0}, "num_beams = 0 searches nothing"),
        ({"num_beams": 10_001}, "beams = 10001 must be from 1, which is greedy, to 10,000"),
        ({"repetition_penalty": 10**400}, "is beyond"),
        ({"top_k": -5, "do_sample": True}, "top_k = -5 keeps no token"),
    ],
)
def test_what_is_not_done_here_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(TextError, match=words):
        released(said)
