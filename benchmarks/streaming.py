"""Memory and time of reading, learning a tokenizer and encoding, for texts of several sizes and layouts.

    python -m benchmarks.streaming --sizes 50 250 --out benchmarks/results/streaming.json

Each measurement is a process of its own; its memory is the peak (VmHWM) above what it is when everything is imported.
The task "run" trains a small model in two processes that share out the weights, from reading the text to the last step; its
memory is the peak of the process that took most, above that of the same run on a megabyte of text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

N_FILES = 200_000
FEW = 500_000_000  # bytes, of which the lines are made anew
SYLLABLES = ("ka", "lo", "mi", "ser", "ta", "ven", "du", "por", "esh", "i", "an", "cor", "tu", "ble", "gra", "ond")

_CHILD = r"""
import json, re, resource, sys, time
import torch, tokenizers, tiktoken, regex, gzip
from anyformer.text import Tokenizer, encode_corpus, read_corpus
from anyformer.text.trained import tokenizer
from anyformer.training.prepare import read_data, Sources
from anyformer.recipe import Recipe
def peak(): return 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
def cpu(): return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
task, text, out = sys.argv[1:]
Tokenizer.train(["warm up"], 260).encode("warm up")
before, used, start = peak(), cpu(), time.perf_counter()
if task == "train":
    said = tokenizer(text, out=out).as_json()["stride"]
else:
    own = Tokenizer.load(out)
    said = read_data(Recipe(), Sources(text), 0.1, tokenizer=own).about
seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": cpu() - used}
print(json.dumps({"nbytes": peak() - before, **seconds, "said": said}))
"""


def words(nbytes: int) -> Iterator[bytes]:
    """Lines of invented words, frequent ones and rare ones as in natural text: about `nbytes`, always the same ones."""
    rng, made = random.Random(0), 0
    while made < nbytes:
        drawn = []
        for _ in range(2000):
            rank = int(rng.paretovariate(0.9))
            letters = random.Random(rank) if rank < 3_000_000 else rng
            drawn.append("".join(letters.choices(SYLLABLES, k=1 + min(4, len(str(rank))))))
        block = "\n".join(" ".join(drawn[i : i + 12]) + "." for i in range(0, len(drawn), 12)).encode() + b"\n"
        for _ in range(20):  # the same words in another order cost less to make
            rng.shuffle(drawn)
            yield block
            made += len(block)
            block = "\n".join(" ".join(drawn[i : i + 12]) + "." for i in range(0, len(drawn), 12)).encode() + b"\n"
        lines = block.splitlines(keepends=True)
        while FEW < made < nbytes and rng.random() < 0.99:  # of larger texts, the same lines in another order
            rng.shuffle(lines)
            yield (block := b"".join(lines))
            made += len(block)


def one_file(folder: Path, nbytes: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "text.txt"
    with open(path, "wb") as file:
        file.writelines(words(nbytes))
    return path


def one_line(folder: Path, nbytes: int) -> Path:
    path = folder / "line.txt"
    with open(path, "wb") as file:
        file.writelines(block.replace(b"\n", b" ") for block in words(nbytes))
        file.write(b"\nthe end of it, to validate on\n")
    return path


def packed(folder: Path, nbytes: int) -> Path:
    path = folder / "text.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for block in words(nbytes):
            file.write(block)
    return path


def json_lines(folder: Path, nbytes: int) -> Path:
    path = folder / "text.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for block in words(nbytes):
            text = block.decode()
            file.writelines(json.dumps({"text": text[i : i + 1000]}) + "\n" for i in range(0, len(text), 1000))
    return path


def many_files(folder: Path, nbytes: int) -> Path:
    size, made = nbytes // N_FILES, 0
    text = b"".join(words(10_000_000))
    for number in range(N_FILES):
        place = folder / "files" / f"{number // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        start = made % (len(text) - size)
        (place / f"{number}.txt").write_bytes(text[start : start + size])
        made += size
    return folder / "files"


LAYOUTS: dict[str, Callable[[Path, int], Path]] = {
    "file": one_file,
    "line": one_line,
    "jsonl": json_lines,
    "gz": packed,
    "files": many_files,
}


def measured(task: str, text: Path, out: Path, cache: Path) -> dict[str, object]:
    """Peak of memory above the interpreter, in bytes, and seconds, on the clock and of all cores, of a process that trains a
    tokenizer or encodes."""
    given = {**os.environ, "ANYFORMER_CACHE": str(cache), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", _CHILD, task, str(text), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"}
    return json.loads(done.stdout)


SIZES = "--params 1M --seq-len 64 --batch-tokens 2048 --tokens 40960 --device cpu --nproc 2 --mesh fsdp=2"


def run(text: Path, little: Path, out: Path, cache: Path) -> dict[str, object]:
    """The largest peak of any process of a run on two, in bytes, and seconds; it is judged by a little text."""
    texts = ("--data", str(text), "--validation-data", str(little), "--tokenizer", str(out))
    given = {**os.environ, "ANYFORMER_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    start, most = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "anyformer",
            "train",
            "llama2",
            *texts,
            *SIZES.split(),
            "--out",
            f"{folder}/run",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=given
        ) as process:
            while process.poll() is None:
                for each in psutil.Process().children(recursive=True):
                    with suppress(OSError, TypeError, psutil.Error):
                        status = Path(f"/proc/{each.pid}/status").read_text(encoding="utf-8")
                        found = re.search(r"VmHWM:\s+(\d+)", status)
                        most = max(most, 1024 * int(found[1]) if found else 0)
                time.sleep(0.05)
            said = process.stderr.read().strip().splitlines() if process.stderr else []
    if process.returncode:
        return {"failed": said[-1] if said else f"status {process.returncode}"}
    return {"nbytes": most, "seconds": time.perf_counter() - start, "cpu_seconds": 0.0, "said": SIZES[-6:]}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 250], help="in megabytes")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--tasks", nargs="+", default=["train", "encode"], choices=["train", "encode", "run"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.exists() else []
    print(f"{'task':<8}{'layout':<8}{'MB':>6}{'peak, MB':>10}{'seconds':>9}{'of cores':>10}  said")
    for size in given.sizes:
        for layout in given.layouts:
            with tempfile.TemporaryDirectory() as folder:
                text, little = (
                    LAYOUTS[layout](Path(folder), size * 1_000_000),
                    one_file(Path(folder, "little"), 1_000_000),
                )
                for task in given.tasks:
                    tokenizer = Path(folder, "tokenizer")
                    if task != "train" and not tokenizer.exists():
                        measured("train", little, tokenizer, Path(folder, "cache"))
                    if task == "run":
                        least, found = (run(each, little, tokenizer, Path(folder, "cache")) for each in (little, text))
                        if "failed" not in {**least, **found}:
                            found["nbytes"] = int(str(found["nbytes"])) - int(str(least["nbytes"]))
                    else:
                        found = measured(task, text, tokenizer, Path(folder, "cache"))
                    key = {"task": task, "layout": layout, "megabytes": size}
                    results = [one for one in results if not key.items() <= one.items()] + [{**key, **found}]
                    if "failed" in found:
                        print(f"{task:<8}{layout:<8}{size:>6}  {found['failed']}", flush=True)
                    else:
                        nbytes, seconds, used = (
                            float(str(found[name])) for name in ("nbytes", "seconds", "cpu_seconds")
                        )
                        row = f"{nbytes / 1e6:>10.0f}{seconds:>9.1f}{used:>10.1f}  {found['said']}"
                        print(f"{task:<8}{layout:<8}{size:>6}{row}", flush=True)
                    if given.out:
                        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
