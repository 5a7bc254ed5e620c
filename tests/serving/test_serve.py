"""The command: a server as its own process, which ends as it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

import anyformer as af
from anyformer.inference.opened import Opened
from anyformer.serving import Limits, application
from anyformer.serving.server import serve
from tests.cli.running import refused, run


@pytest.fixture(scope="module")
def directory(found: Opened, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "fox"
    af.save(found.model, folder, tokenizer=found.tokenizer)
    return folder


def test_sigterm_lets_answers_end(directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "anyformer", "serve", str(directory), "--port", "0", "--max-length", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    watch = threading.Timer(100, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2].rstrip(";")
        ask = {"model": "fox", "prompt": "if x", "max_tokens": 300, "temperature": 1, "seed": 0, "stream": True}
        with httpx.stream("POST", f"{url}/completions", json=ask, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        until = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert process.returncode == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        watch.cancel()
        process.kill()
        process.communicate()


def test_what_cannot_be_served(directory: Path, tmp_path: Path) -> None:
    refused(run("serve", tmp_path / "none"), "none")
    refused(run("serve", directory, "--host", "256.0.0.1"), "--host 256.0.0.1")
    refused(run("serve", directory, "--api-key", ""), "--api-key is empty")
    refused(run("serve", "gpt2"), "architecture without weights")


def test_a_signal_before_the_server_runs_ends_it(found: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever read its address may end it at once."""
    monkeypatch.setattr("anyformer.serving.server.say", lambda line: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    app = application(found, "tiny", Limits(longest=100))
    watch = threading.Timer(60, os.kill, (os.getpid(), signal.SIGINT))
    watch.start()
    begun = time.monotonic()
    try:
        serve(app, "127.0.0.1", 0)
    finally:
        watch.cancel()
    assert time.monotonic() - begun < 30
    assert signal.getsignal(signal.SIGTERM) is before
