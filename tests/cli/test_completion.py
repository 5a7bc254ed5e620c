"""`anyformer completion`: each shell's script asks the program in that shell's own way; other shells are refused."""

import os
import shutil
import subprocess

import pytest

from tests.cli.running import refused, run, succeeded


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_program(shell: str) -> None:
    script = succeeded(run("completion", shell)).stdout
    assert f"_ANYFORMER_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is not None:
        asked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, timeout=30, env=os.environ)
        assert (asked.returncode, asked.stderr) == (0, "")


def test_another_shell() -> None:
    refused(run("completion", "powershell"), "powershell")
