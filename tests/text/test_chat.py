"""Chat templates: what transformers writes, we write; and what a template should not do ends it, quickly, in one line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from anyformer.errors import TextError
from anyformer.text import Tokenizer
from anyformer.text.chat import Chat
from tests.serving.conftest import TEXTS

MESSAGES = [
    {"role": "system", "content": "be <brief> & 'kind'"},
    {"role": "user", "content": "Größe?"},
    {"role": "assistant", "content": " 東京 "},
    {"role": "user", "content": "why"},
]
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' ~ m.content | trim ~ ' [/INST]' }}"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "blocks": "{% for m in messages %}\n  {%- if loop.first %}\n  {{ m | tojson }}\n  {% endif %}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}\n"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
    "{{ ns.n }}{{ messages[-1].content.split('h')[-1] }}{{ tools is none }}",
}
HOSTILE = {
    "classes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "__class__"),
    "code": ("{{ messages.append.__globals__ }}", "unsafe"),
    "format": ("{{ '{0.__class__.__init__}'.format(messages) }}", "unsafe"),
    "changes": ("{% set x = messages.append(1) %}", "unsafe"),
    "files": ("{% include '/etc/passwd' %}", "no loader"),
    "text for ever": (
        "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
        "more than",
    ),
    "nothing for ever": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "more than 5 s",
    ),
    "all memory": ("{{ 'x' * 10 ** 10 }}", "MemoryError"),
    "twice as much": (
        "{% set ns = namespace(x='xxxxxxxx') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "MemoryError",
    ),
    "no end": ("{% for m in messages %}", "TemplateSyntaxError"),
    "its own words": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
}


def chat(template: str) -> Chat:
    tokenizer = Tokenizer.train(TEXTS, 320)
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "chat_template": template}
    return Chat(Tokenizer(tokenizer._inner, config))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=list(TEMPLATES))
def test_the_text_is_that_of_transformers(template: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    with chat(template) as ours:
        ours.tokenizer.save(tmp_path)
        theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        for answers in (True, False):
            expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=answers)
            assert ours.text(MESSAGES, answers=answers) == expected


@pytest.mark.parametrize(("template", "says"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_template_ends(template: str, says: str) -> None:
    with chat(template) as ours:
        start = time.monotonic()
        with pytest.raises(TextError, match=says) as caught:
            ours.text(MESSAGES)
        assert time.monotonic() - start < 20
        assert str(caught.value).startswith("the chat template")


def test_a_template_is_compiled_once() -> None:
    """As often as a file has answers, it would take longer than all else."""
    with chat(
        "{% for m in messages %}" + "{% if m.role == 'x' %}{{ m.content }}{% endif %}" * 2000 + "a{% endfor %}"
    ) as ours:
        start = time.monotonic()
        ours.text(MESSAGES)
        first = time.monotonic() - start
        for _ in range(20):
            ours.text(MESSAGES)
        assert time.monotonic() - start < 5 * first


def test_it_leaves_no_process() -> None:
    with chat("{{ messages[0].content }}") as ours:
        assert ours.text(MESSAGES) == ours.text(MESSAGES) == "be <brief> & 'kind'"
        assert ours._process is not None
        number = ours._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_where_templates_lie(tmp_path: Path) -> None:
    """A file wins over the configuration; of several the default one."""
    tokenizer = Tokenizer.train(TEXTS, 320)
    assert tokenizer.chat_template is None
    with pytest.raises(TextError, match="no chat template"):
        Chat(tokenizer)
    several = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    Tokenizer(tokenizer._inner, {"chat_template": several}).save(tmp_path)
    assert Tokenizer.load(tmp_path).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert Tokenizer.load(tmp_path).chat_template == "file"
    with pytest.raises(TextError, match="chat_template is a int"):
        _ = Tokenizer(tokenizer._inner, {"chat_template": 3}).chat_template
