"""Conversations: each answer continues all that was said, as the template writes it; on the command line too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.errors import InputError, TextError
from anyformer.families.compose import changed
from anyformer.generation import Sampling, encode_prompt, generate_text
from anyformer.inference.conversation import Conversation
from anyformer.inference.opened import Opened
from anyformer.resizing import resize
from anyformer.screen import visible
from anyformer.spec import TableSpec
from anyformer.text import Tokenizer
from tests.cli.running import answer, refused, run, succeeded
from tests.laws.models import SHRUNK, randomised
from tests.serving.conftest import TEMPLATE, TEXTS


def opened(template: str | None = TEMPLATE) -> Opened:
    tokenizer = Tokenizer.train(TEXTS, 320)
    tokenizer = Tokenizer(tokenizer._inner, {"add_bos_token": True} | ({"chat_template": template} if template else {}))
    spec = next(spec for name, spec in SHRUNK.items() if "llama2-7b" in name)
    return Opened(randomised(changed(spec, TableSpec, rows=tokenizer.vocab_size)), tokenizer, None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, found = tmp_path_factory.mktemp("chat") / "fox", opened()
    af.save(found.model, folder, tokenizer=found.tokenizer)
    return folder


def written(found: Opened, prompt: str, n: int, seed: int = 0, **drawn: Any) -> str:
    (text,) = generate_text(
        found.model, found.tokenizer, [prompt], max_new_tokens=n, sampling=Sampling(**drawn), seed=seed
    )
    return text.text


def test_an_answer_continues_all_that_was_said() -> None:
    found, pieces = opened(), list[str]()
    with Conversation(found, "be brief") as conversation:
        one = conversation.answer("the fox?", max_new_tokens=9, on_text=lambda _, piece: pieces.append(piece))
        first = "system: be brief\nuser: the fox?\nassistant:"
        assert one.text == "".join(pieces) == written(found, first, 9)
        two = conversation.answer("if x", max_new_tokens=7, sampling=Sampling(1.0), seed=4)
        second = f"{first[:-10]}assistant: {one.text}\nuser: if x\nassistant:"
        assert two.text == written(found, second, 7, temperature=1.0, seed=4)
        conversation.reset()
        assert conversation.messages == [{"role": "system", "content": "be brief"}]


def test_an_answer_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    found, read = opened(), list[int]()
    found.model.stack.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[1]))
    with Conversation(found, "be brief") as conversation:
        one = conversation.answer("the fox?", max_new_tokens=9)
        first = "system: be brief\nuser: the fox?\nassistant:"
        n = len(encode_prompt(found.tokenizer, first))
        assert read == [n] + [1] * 8
        read.clear()
        conversation.answer("if x", max_new_tokens=1)
        whole = encode_prompt(found.tokenizer, f"{first} {one.text}\nuser: if x\nassistant:")
        known = encode_prompt(found.tokenizer, first)[:-1]
        assert whole[: len(known)] == known
        assert len(read) == 1
        assert read[0] <= len(whole) - len(known)
        read.clear()
        conversation.reset()
        conversation.answer("the fox?", max_new_tokens=1)
        assert read == [1], "all but the last token of it was read"


def test_what_fails_is_not_part_of_it() -> None:
    found = opened("{% if messages|length > 2 %}{{ raise_exception('no more') }}{% endif %}{{ messages[0].content }}")
    with Conversation(found) as conversation:
        conversation.answer("a", max_new_tokens=2)
        before = list(conversation.messages)
        with pytest.raises(TextError, match="no more"):
            conversation.answer("b")
        assert conversation.messages == before


def few_positions() -> Opened:
    found = opened()
    spec = next(spec for name, spec in SHRUNK.items() if "gpt2-xl" in name)
    spec = resize(changed(spec, TableSpec, rows=found.tokenizer.vocab_size), context=48)
    return Opened(randomised(spec), found.tokenizer, None)


def test_an_answer_takes_what_room_there_is() -> None:
    found = few_positions()
    with Conversation(found) as conversation:
        ids = encode_prompt(found.tokenizer, "user: the fox?\nassistant:")
        told = conversation.answer("the fox?", seed=1)
        assert len(ids) + len(told.token_ids) == 48
        with pytest.raises(
            InputError, match=r"tokens, and the 48 learned positions of this model leave no room .*\(/reset\)"
        ):
            conversation.answer("and?")
        conversation.reset()
        with pytest.raises(InputError, match=f"ask for at most {48 - len(ids)} new tokens"):
            conversation.answer("the fox?", max_new_tokens=40)


def test_a_chat_without_room_goes_on_behind_a_reset(tmp_path: Path) -> None:
    found = few_positions()
    af.save(found.model, tmp_path / "fox", tokenizer=found.tokenizer)
    result = succeeded(run("chat", tmp_path / "fox", "--temperature", 0, typed="the fox?\nand?\n/reset\nthe fox?\n"))
    assert "leave no room for an answer; say less, or begin anew (/reset)" in result.stderr
    assert "the conversation begins anew" in result.stderr
    prompt = "user: the fox?\nassistant:"
    text = written(found, prompt, 48 - len(encode_prompt(found.tokenizer, prompt)))
    assert result.stdout == f"{visible(text)}\n" * 2


def test_generate_answers(directory: Path) -> None:
    found = opened()
    ask = ("generate", "the fox?", "--model", directory, "--chat", "--max-new-tokens", 12)
    said = "user: the fox?\nassistant:"
    assert succeeded(run(*ask)).stdout == visible(written(found, said, 12)) + "\n"
    told = answer(*ask, "--system", "hm", "--temperature", 1, "--seed", 3)
    assert told["text"] == written(found, f"system: hm\n{said}", 12, temperature=1.0, seed=3)
    refused(run(*ask, "--beams", 2), "leave --beams and --data out")
    refused(run("generate", "a", "--model", directory, "--system", "x"), "give --chat too")
    refused(
        run("chat", directory, "--min-new-tokens", 2000, typed="the fox?\n"), "more than the 1,024 that are written"
    )


@pytest.mark.parametrize("how", [("--lookup", 3), ("--draft", "{}", "--draft-tokens", 2)])
def test_guesses_make_the_same_answers_in_fewer_passes(how: tuple[str | int, ...], directory: Path) -> None:
    guesses = [str(each).format(directory) for each in how]
    first = "user: the fox?\nassistant:"
    one = written(opened(), first, 20)
    two = written(opened(), f"{first} {one}\nuser: if x\nassistant:", 20)
    options = ("--max-new-tokens", 20, "--temperature", 0)
    told = succeeded(run("chat", directory, *options, *guesses, typed="the fox?\nif x\n"))
    assert told.stdout == f"{visible(one)}\n{visible(two)}\n"
    told = answer("generate", "the fox?", "--model", directory, "--chat", "--max-new-tokens", 20, *guesses)
    assert told["text"] == one
    assert told["passes"] < len(told["token_ids"]) == 20
    said = succeeded(run("generate", "the fox?", "--model", directory, "--chat", "--max-new-tokens", 20, *guesses))
    assert f"20 tokens in {told['passes']} passes" in said.stderr
    for command in (("chat", directory), ("generate", "the fox?", "--model", directory, "--chat")):
        refused(run(*command, *guesses, "--compile", typed="the fox?\n"), "leave --draft, --lookup and --ahead out")


def test_answers_are_as_released(tmp_path: Path) -> None:
    found = opened()
    af.save(found.model, tmp_path / "fox", tokenizer=found.tokenizer)
    said = {"do_sample": True, "temperature": 3.0, "top_k": 9, "max_new_tokens": 6}
    (tmp_path / "fox/generation_config.json").write_text(json.dumps(said))
    prompt, ask = "user: the fox?\nassistant:", ("chat", tmp_path / "fox", "--as-released", "--seed", 2)
    result = succeeded(run(*ask, typed="the fox?\n"))
    assert result.stdout == visible(written(found, prompt, 6, seed=2, temperature=3.0, top_k=9)) + "\n"
    assert "as released: temperature 3.0, top_k 9, max_new_tokens 6" in result.stderr
    result = succeeded(run(*ask, "--top-k", 4, "--max-new-tokens", 3, typed="the fox?\n"))
    assert result.stdout == visible(written(found, prompt, 3, seed=2, temperature=3.0, top_k=4)) + "\n"
    told = answer("generate", "the fox?", "--model", tmp_path / "fox", "--chat", "--as-released", "--seed", 2)
    assert told["text"] == written(found, prompt, 6, seed=2, temperature=3.0, top_k=9)
    (tmp_path / "fox/generation_config.json").write_text(json.dumps({"num_beams": 2}))
    for command in (ask, ("serve", tmp_path / "fox", "--as-released")):
        refused(run(*command, typed="the fox?\n"), "ask for 2 beams, and here a text is written token by token")


def test_chat(directory: Path, tmp_path: Path) -> None:
    typed = (
        f"the fox?\n\n/save {tmp_path / 'said.json'}\n/reset\n/what\n/save {tmp_path}/no/where\nthe fox?\n/exit\nmore\n"
    )
    options = ("--max-new-tokens", 8, "--temperature", 0)
    result = succeeded(run("chat", directory, *options, typed=typed))
    text = written(opened(), "user: the fox?\nassistant:", 8)
    assert result.stdout == f"{visible(text)}\n{visible(text)}\n"
    assert json.loads((tmp_path / "said.json").read_text(encoding="utf-8")) == [
        {"role": "user", "content": "the fox?"},
        {"role": "assistant", "content": text},
    ]
    assert "there is no /what so; /reset" in result.stderr
    assert "could not write" in result.stderr
    (tmp_path / "mine.json").write_text("mine")
    typed = f"/save {tmp_path}/mine.json\n/save {tmp_path}/new.json\n/save {tmp_path}/new.json\n"
    result = succeeded(run("chat", directory, typed=typed))
    assert "mine.json exists already; give a new name" in result.stderr
    assert (tmp_path / "mine.json").read_text() == "mine"
    assert result.stderr.count("saved in") == 2  # what it wrote it may write again
    assert succeeded(run("chat", directory, typed="")).stdout == ""


def test_tools_are_told_of_and_give_results(tmp_path: Path) -> None:
    found = opened(TEMPLATE.replace("{% for", "{{ tools | tojson }}{% for", 1))
    af.save(found.model, tmp_path / "fox", tokenizer=found.tokenizer)
    (tmp_path / "tools.json").write_text('[{"name": "find"}]')
    how = ("chat", tmp_path / "fox", "--tools", tmp_path / "tools.json", "--temperature", 0, "--max-new-tokens", 5)
    told = succeeded(run(*how, typed=f"the fox?\n/tool if x\n/save {tmp_path / 'talk.json'}\n"))
    (_, one, result, two) = json.loads((tmp_path / "talk.json").read_text())
    first = '[{"name": "find"}]user: the fox?\nassistant:'
    assert one["content"] == written(found, first, 5)
    assert result == {"role": "tool", "content": "if x"}
    assert two["content"] == written(found, f"{first} {one['content']}\ntool: if x\nassistant:", 5)
    assert told.stdout.splitlines()[0] == visible(one["content"]).splitlines()[0]
    (tmp_path / "tools.json").write_text('{"name": "find"}')
    refused(run(*how), "tools.json: tools = {'name': 'find'} is not a list of objects")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "no chat template"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}xxxx{% endfor %}{% endfor %}", "more than"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{# nothing #}", "the chat template writes nothing"),
    ],
)
def test_templates_that_are_none(template: str | None, says: str, tmp_path: Path) -> None:
    found = opened(template)
    af.save(found.model, tmp_path / "fox", tokenizer=found.tokenizer)
    refused(run("chat", tmp_path / "fox", typed="hello\n"), says)
    refused(run("generate", "hello", "--model", tmp_path / "fox", "--chat"), says)


def test_a_template_is_named_where_a_model_brings_none(tmp_path: Path) -> None:
    found = opened(None)
    af.save(found.model, tmp_path / "fox", tokenizer=found.tokenizer)
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    named = ("--chat-template", tmp_path / "chat.jinja", "--temperature", "0", "--max-new-tokens", "5")
    wanted = visible(written(found, "user: the fox?\nassistant:", 5))
    for told in (
        run("chat", tmp_path / "fox", *named, typed="the fox?\n"),
        run("generate", "the fox?", "--model", tmp_path / "fox", "--chat", *named),
    ):
        assert succeeded(told).stdout.rstrip("\n") == wanted.rstrip("\n")
    refused(run("generate", "the fox?", "--model", tmp_path / "fox", *named), "--chat-template writes a conversation")


def test_a_line_that_is_no_text_does_not_end_a_chat(directory: Path) -> None:
    command = [sys.executable, "-m", "anyformer", "chat", str(directory), "--max-new-tokens", "8", "--temperature", "0"]
    result = subprocess.run(command, input=b"caf\xe9\nthe fox?\n", capture_output=True, check=True)
    assert result.stderr.decode().strip() == "error: that line is not UTF-8 text; convert it, or write it again"
    text = written(opened(), "user: the fox?\nassistant:", 8)
    assert result.stdout.decode() == f"{visible(text)}\n"
