"""A specification is refused, or costed, soon and in little memory, whatever its sizes."""

import json
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import pytest

from anyformer.costs import cost
from anyformer.costs.sections import sections
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import FeedForwardSpec
from anyformer.layers.head import chunks_of, watcher
from anyformer.spec import BlockSpec, ModelSpec, encode

LIMITS = r"""
import json, re, sys, time
from anyformer.costs import cost
from anyformer.errors import AnyformerError
from anyformer.spec import loads
from anyformer.families import preset
cost(preset("gpt2"), seq_len=32).activations
# Not ru_maxrss: that begins with what the process that started this one had.
peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
for text in json.load(sys.stdin):
    began, before = time.process_time(), peak()
    try:
        spec = loads(text)
        found = cost(spec, seq_len=32)
        said = f"{found.parameters.total}"
        found.activations
    except AnyformerError as error:
        said = str(error)
    seconds = time.process_time() - began
    print(json.dumps([said, seconds, peak() - before]), flush=True)
"""
D_FF = ("stack", "blocks", "a", "sublayers", 1, "branches", 0, "mixer", "d_ff")
HEADS = ("stack", "blocks", "a", "sublayers", 0, "branches", 0, "mixer", "projection")
ATTENTION = HEADS[:-1]


def differing(n: int) -> ModelSpec:
    """GPT-2 with `n` layers of which no two are as wide."""
    spec = preset("gpt2").spec
    widths = [change_of(spec.stack.blocks[0], d_ff) for d_ff in range(256, 256 + n)]
    return spec.but(stack=spec.stack.but(blocks=tuple(widths)))


def change_of(block: BlockSpec, d_ff: int) -> BlockSpec:
    attention, feed_forward = block.sublayers
    (branch,) = feed_forward.branches
    mixer = branch.mixer
    assert isinstance(mixer, FeedForwardSpec)
    return block.but(sublayers=(attention, feed_forward.but(branches=(branch.but(mixer=mixer.but(d_ff=d_ff)),))))


def llama(path: tuple[Any, ...], value: Any) -> str:
    """LLaMA 3 8B as JSON, with one thing changed."""
    data = json.loads(json.dumps({"anyformer": 1, **encode(preset("llama3-8b").spec, ModelSpec)}))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(data)


CHANGES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "layers": (("stack", "blocks", "n"), 10_000),
    "more layers": (("stack", "blocks", "n"), 10**6),
    "wide": (("stack", "d_model"), 10**18),
    "widest": (D_FF, 2**28),
    "negative": (D_FF, -3072),
    "heads": (HEADS, {"kind": "GQA", "n_heads": 10**9}),
    "most heads": (HEADS, {"kind": "GQA", "n_heads": 2**16, "n_kv_heads": 2**16, "head_dim": 2}),
    "wide heads": (HEADS, {"kind": "GQA", "n_heads": 2**16, "n_kv_heads": 2**16, "head_dim": 2**20}),
    "slopes": (
        ATTENTION,
        {"kind": "Attention", "projection": {"kind": "GQA", "n_heads": 2**16, "head_dim": 2}, "scores": ["ALiBi"]},
    ),
    "vertical": ((*ATTENTION, "mask"), {"kind": "LocalAndVertical", "size": 1, "near": 1, "stride": 2**40}),
    "rows": (("stack", "embedding", "terms", 0, "table", "rows"), 2**32),
}


@pytest.mark.parametrize("name", ["t5-base", "deberta-base"])  # scores and gathered positions, for each pair of tokens
def test_a_pass_of_more_bytes_than_are_counted_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"1,000,000,000 tokens make tensors of more than 2\^63 bytes .* take fewer"):
        cost(preset(name), seq_len=10**9).activations  # noqa: B018


def test_a_pass_of_many_tokens_takes_no_longer_than_one_of_few() -> None:
    chunks = chunks_of(10**15, 1024)  # a list of them would fill any memory
    assert [next(chunks), next(chunks)] == [slice(0, 1024), slice(1024, 2048)]
    watched = watcher.set(lambda times: nullcontext(seen.append(times)))
    seen: list[int] = []
    try:
        assert list(chunks_of(10**15 + 1, 1000)) == [slice(0, 1000), slice(10**15, 10**15 + 1)]
    finally:
        watcher.reset(watched)
    assert seen == [10**12]


def test_hundreds_of_layers_that_differ_are_costed_soon() -> None:
    began = time.process_time()
    report = cost(differing(300), seq_len=32)
    lines = [line.says for section in sections(report) for line in section.lines]
    assert any(says.startswith("not observed: 300 layers differ") for says in lines)
    assert report.as_json()["activations"] is None
    assert report.training_flops_total == 3 * report.forward_flops_total > 0
    assert time.process_time() - began < 10  # 2 on a machine that is idle; observed, they would take 30
    assert not cost(differing(3), seq_len=32).unobserved


@pytest.mark.slow
def test_time_and_memory_are_bounded() -> None:
    texts = json.dumps([llama(path, value) for path, value in CHANGES.values()])
    ran = subprocess.run(
        [sys.executable, "-c", LIMITS],
        input=texts,
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (120, 120)),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = dict(zip(CHANGES, map(json.loads, ran.stdout.splitlines()), strict=True))
    for name, (said, seconds, kib) in found.items():
        assert seconds < 8, (name, seconds, said)  # 2 on a machine that is idle
        assert kib < 500 * 1024, (name, kib, said)
        assert len(said) < 300
    refused = {name for name, (said, *_) in found.items() if not said.isdecimal()}
    assert refused == {"more layers", "wide", "negative", "heads", "wide heads"}
    assert int(found["layers"][0]) > 10**12
