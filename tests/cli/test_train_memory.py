"""`train --memory` and `--workers`: what they change, what they leave as it is, and how all processes end together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import answer, refused, run, write_text

pytestmark = pytest.mark.usefixtures("_quick")
ROOT = Path(__file__).resolve().parent.parent.parent
SIZES = ("--vocab", "300", "--batch-tokens", "64", "--seq-len", "16", "--device", "cpu", "--params", "30k")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_text(tmp_path / "text.txt")
    return tmp_path / "text.txt"


def losses(out: Path) -> list[float]:
    lines = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_a_run_with_a_memory_is_evaluated_with_it(text: Path, tmp_path: Path) -> None:
    common = ("train", "llama2", "--data", text, "--tokens", "640", *SIZES)
    with_memory, alone = tmp_path / "memory", tmp_path / "alone"
    told = answer(*common, "--out", with_memory, "--memory", "24", "--workers", "2")
    plain = answer(*common, "--out", alone)
    assert told["flops_per_token"] > plain["flops_per_token"]
    assert "memory: 24" in (with_memory / "recipe.yaml").read_text()
    assert losses(with_memory) != losses(alone)
    again = tmp_path / "again"
    answer(*common, "--out", again, "--memory", "24")
    assert losses(again) == losses(with_memory)

    short = tmp_path / "short.txt"
    short.write_text(text.read_text()[:900])
    judged = ("evaluate", with_memory, "--data", short, "--device", "cpu")
    found, without, more = answer(*judged), answer(*judged, "--memory", "0"), answer(*judged, "--memory", "10k")
    assert (found["memory"], without["memory"], more["memory"]) == (24, 0, 10_000)
    assert len({found["nats"], without["nats"], more["nats"]}) == 3
    assert "memory" not in answer("evaluate", alone, "--data", short, "--device", "cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpt2", "--memory", "8"), "its positions are absolute (LearnedPositions)"),
        (("llama2", "--memory", "0"), "less than 1, the least that is taken here"),
        (("llama2", "--memory", "8", "--recompute", "full"), "--recompute full would add to the memory"),
        (("llama2", "--workers", "-1"), "--workers"),
    ],
)
def test_what_cannot_be_is_refused(text: Path, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    refused(run("train", *arguments, "--data", text, "--tokens", "640", *SIZES, "--out", tmp_path / "run"), said)
    assert not (tmp_path / "run").exists()


def test_ctrl_c_ends_all_processes_in_one_line(text: Path, tmp_path: Path) -> None:
    """A terminal sends the signal to all of them at once."""
    out = tmp_path / "run"
    command = ["train", "llama2", "--data", text, "--tokens", "10M", *SIZES, "--out", out, "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "ANYFORMER_CACHE": str(tmp_path / "cache")}
    environment.pop("TOKENIZERS_PARALLELISM", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "anyformer", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 300
        while not (out / "metrics.jsonl").is_file() or len(losses_so_far(out)) < 3:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "huggingface" not in said
    assert said.strip().splitlines()[-1].startswith("error: stopped by SIGINT after step")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def losses_so_far(out: Path) -> list[str]:
    return (out / "metrics.jsonl").read_text().splitlines()
