"""The examples run as a reader runs them, and say what is so."""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import anyformer as af
from anyformer.hub import load_spec
from tests.warm import python

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(folder: Path, *arguments: str) -> str:
    """Return what `python …` prints in `folder`."""
    done = python(*arguments, cwd=folder, environment={"ANYFORMER_CACHE": str(folder / "cache")})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "ablations",
        "at_the_start",
        "own_family",
        "own_part",
        "cost_table",
        "hybrid",
        "judge",
        "train_tiny",
        "llama2c",
        "lora",
        "merging",
        "norms",
        "reads_both_ways",
        "rewards",
        "surgery",
    }


def test_own_part(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "own_part.py"), "mine.yaml")
    norms, attention, feed = 9 * 64, 2 * 64 * 64 + 2 * 64 * 32, 2 * 64 * 256
    total = 512 * 64 + norms + 4 * (attention + feed)
    assert out.splitlines() == [
        "mine.yaml holds the same architecture: True",
        f"{total:,} parameters declared, {total:,} built",
        "cached decoding is the full pass: True",
    ]
    shown = run(tmp_path, "-m", "anyformer", "show", "./mine.yaml", "--import", str(EXAMPLES / "own_part.py"))
    assert "PeakNorm" in shown
    assert re.search(r"keys seen +1 × full : 1 × Dilated \(stride 4\)", shown)


def test_own_family(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "own_family.py"), "out")
    assert out.splitlines() == ["out holds a SheepForCausalLM", "read again it computes the same: True"]
    checked = run(tmp_path, "-m", "anyformer", "check", "./out", "--import", str(EXAMPLES / "own_family.py"))
    assert "SheepForCausalLM" in checked


def test_cost_table(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "cost_table.py"), "gpt2", "llama2-7b", "--seq-len", "512")
    cells = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]]
        for line in out.splitlines()
        if "|" in line
    }
    # 2 tensors, 2 bytes, layers × width; GPT-2: the authors' 124M, LLaMA 2: n_layers 32, d_model 4096.
    assert cells["gpt2"][0] == "124,439,808"
    assert cells["gpt2"][3] == f"{2 * 2 * 12 * 768:,}"
    assert cells["llama2-7b"][0] == "6,738,415,616"
    assert cells["llama2-7b"][3] == f"{2 * 2 * 32 * 4096:,}"
    # Attention sees (n + 1) / 2 keys on average, 4 · d_model FLOPs a pair; matrices are all but a table and norms.
    matrices = 2 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096)
    attention = 32 * 4 * 4096 * 513 / 2
    assert cells["llama2-7b"][2] == f"{attention / (attention + matrices):.1%}"
    assert cells["llama2-7b"][1] == f"{3 * (attention + matrices):,.0f}"


class Tiny(NamedTuple):
    """What train_tiny.py trained, and printed."""

    path: Path
    text: Path
    out: str


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    lines = [f"{n} sheep and {n + 1} goats went up the hill and came down again.\n" for n in range(900)]
    (folder / "sheep.txt").write_text("".join(lines), encoding="utf-8")
    out = run(folder, str(EXAMPLES / "train_tiny.py"), "sheep.txt", "first", "6e4", "12e4", "7 sheep and")
    return Tiny(folder / "first", folder / "sheep.txt", out)


def test_train_tiny(tiny: Tiny) -> None:
    found = re.search(r"([\d.]+) bits a byte", tiny.out)
    assert found is not None
    assert 0 < float(found[1]) < 1.5  # each line is known but for its number; 8 would be no model at all
    assert "7 sheep and" in tiny.out
    model, tokenizer = af.load(tiny.path)
    assert tokenizer is not None
    assert sum(p.numel() for p in model.parameters()) == af.parameters(model.spec).total


def test_hybrid(tmp_path: Path, tiny: Tiny) -> None:
    out = run(tmp_path, str(EXAMPLES / "hybrid.py"), str(tiny.path), str(tiny.text), "24k", "out")
    losses = {line.split("|")[1].split(",")[0].strip(): float(line.split("|")[2]) for line in out.splitlines()[-4:]}
    assert list(losses) == [str(tiny.path), "the hybrid of its parts", "taught", "from nothing"]
    assert max(losses[str(tiny.path)], losses["taught"]) < losses["the hybrid of its parts"] - 0.1
    assert losses["the hybrid of its parts"] < losses["from nothing"]
    start = load_spec(tmp_path / "out" / "start")
    mixers = [block.sublayers[0].branches[0].mixer.kind for block in start.stack.blocks]
    assert mixers[:2] == ["GatedDeltaNet", "Attention"]


@pytest.mark.slow
def test_merging(tmp_path: Path, tiny: Tiny) -> None:
    said = {"cows": "slept below a tree", "birds": "flew over the sea"}
    for name, does in said.items():
        lines = [f"{n} {name} and {n + 1} goats {does} and came down again.\n" for n in range(900)]
        (tmp_path / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    out = run(tmp_path, str(EXAMPLES / "merging.py"), str(tiny.path), "cows.txt", "birds.txt", "12k", "out")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out[out.index("| bits a byte") :].splitlines()]
    assert rows[0] == ["bits a byte", "cows.txt", "birds.txt"]
    bits = {name: (float(one), float(other)) for name, one, other in rows[2:]}
    assert len(bits) == 12
    base, one, other = (bits[name] for name in ("the base", "trained on the one", "trained on the other"))
    assert one[0] < base[0] - 0.1
    assert other[1] < base[1] - 0.1
    for name in ("mean", "slerp", "task arithmetic", "TIES, half of each change"):
        assert bits[name][0] < base[0], name
        assert bits[name][1] < base[1], name
    assert bits["mean"][0] < other[0], "the mean knows more of a text than the model of the other text"
    assert bits["mean"][1] < one[1]
    assert bits["the base without what the other learnt"][1] > base[1]


def test_norms(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "norms.py"), "--params", "1.3M", "--seq-len", "32", "--batch", "1")
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in out.splitlines()[2:]}
    spec = af.resize(af.preset("llama2-7b"), n_params=1_300_000, vocab_size=8192)
    norms = (2 * spec.n_layers + 1) * spec.stack.d_model
    assert [int(rows[name][0].replace(",", "")) for name in ("RMSNorm", "LayerNorm")] == [
        af.cost(spec).parameters.total,
        af.cost(spec).parameters.total + norms,  # a bias beside each gain
    ]
    flops, seconds = (float(share.rstrip("%")) for share in rows["LayerNorm"][2:])
    assert 0 < flops < 5
    assert flops < seconds < 90, "norms take a larger share of the time than of the FLOPs"


def test_at_the_start(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "at_the_start.py"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[2:]]
    plain, scaled = ([float(row[column]) for row in rows] for column in (1, 2))
    names = [row[0] for row in rows]
    width = af.resize(af.load_spec("llama2+tied=true"), n_params=1_250_000, vocab_size=2048).stack.d_model
    assert math.isclose(plain[0], 0.02, rel_tol=0.02)
    assert math.isclose(scaled[0], 0.02 * width**0.5, rel_tol=0.02)
    # Of vectors of length √d_model, values of deviation .02 √d_model; token t takes the mean of t of them; one map more.
    first = 0.02**2 * width * (sum(1 / t for t in range(1, 257)) / 256) ** 0.5
    attention = [i for i, name in enumerate(names) if "Attention" in name]
    for found in (plain, scaled):
        assert math.isclose(found[attention[0]], first, rel_tol=0.05)
    assert plain[attention[-1]] > 2 * plain[0], "later layers write more than a token's own vector has"
    assert scaled[attention[-1]] < 0.05 * scaled[0]


def test_ablations(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "ablations.py"), "llama2", "norm=LayerNorm", "activation=GELU", "attention=MQA")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[2:]]
    layers, d, f = 32, 4096, 11_008  # LLaMA 2 7B's
    more = {"": 0, "+norm=LayerNorm": (2 * layers + 1) * d, "+activation=GELU": -layers * d * f}
    more["+attention=MQA"] = -layers * 2 * d * 31 * 128
    assert [row[0] for row in rows] == [f"llama2{name}" for name in more]
    assert [int(row[1].replace(",", "")) - 6_738_415_616 for row in rows] == list(more.values())
    assert rows[-1][3] == f"{layers * 2 * 128 * 2:,}"  # keys and values of one head, 2 bytes


def test_reads_both_ways(tmp_path: Path) -> None:
    sides = {"warm": ("sun", "fire"), "cold": ("ice", "snow")}
    rows = [
        {"text": f"the {word} of day {i}", "label": side} for i in range(30) for side in sides for word in sides[side]
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sizes = ["--params", "30000", "--vocab", "290", "--tokens", "10240", "--batch-tokens", "512", "--lr", "0.01"]
    out = run(tmp_path, str(EXAMPLES / "reads_both_ways.py"), "rows.jsonl", *sizes, "--seeds", "1")
    assert out.splitlines()[0] == "96 texts to train on, 24 to judge by; labels cold, warm"
    found = {line.split()[0]: float(re.findall(r"accuracy ([\d.]+)", line)[0]) for line in out.splitlines()[1:]}
    assert set(found) == {"bert-base", "gpt2"}
    assert min(found.values()) > 0.9  # one word says it, and half the labels are of either side


def test_rewards(tmp_path: Path) -> None:
    lines = run(tmp_path, str(EXAMPLES / "rewards.py"), "sums", "40000").splitlines()
    judged = [line for line in lines if "(100 prompts)" in line]
    found = {line.partition(":")[0]: float(re.findall(r"([\d.]+)% right", line)[0]) for line in judged}
    assert set(found) == {"taught", "rewarded"}
    assert 60 < found["taught"] < 90  # sixty sums of a hundred were shown
    assert len(lines) == 2 * (1 + 4)  # a few answers behind each


def test_judge(tmp_path: Path) -> None:
    lines = run(tmp_path, str(EXAMPLES / "judge.py"), "judged", "40000").splitlines()
    found = {
        line.partition(":")[0]: float(re.findall(r"([\d.]+)% right", line)[0]) for line in lines if "% right" in line
    }
    assert set(found) == {"the judge", "taught", "rewarded"}
    assert found["the judge"] > 65  # of pairs, half of which a guess would have
    assert 60 < found["taught"] < 90


@pytest.mark.slow
def test_lora(tmp_path: Path) -> None:
    out = run(tmp_path, str(EXAMPLES / "lora.py"), "made")
    assert out.splitlines() == ["transformers", "the loss fell from 4.1: True", "read back, it says the same: True"]


@pytest.mark.slow
def test_surgery(tmp_path: Path, tiny: Tiny) -> None:
    run(tmp_path, "-m", "anyformer", "tokenizer", "train", str(tiny.text), "--vocab", "270", "--out", "other")
    out = run(tmp_path, str(EXAMPLES / "surgery.py"), str(tiny.path), "other", str(tiny.text), "12k", "out")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[2:]]
    bits = {name: tuple(map(float, figures)) for name, _, *figures in rows}
    assert len(bits) == 16
    first, _, anew = bits["as it was"]
    for name in (
        "twice the neurons",
        "all twice as wide",
        "8 experts, 2 a token",
        "each layer twice, the second silent",
    ):
        assert bits[name][0] == first, name  # the function is what it was
    assert bits["as many, those that matter most"][0] <= bits["every second layer"][0]  # by the loss itself
    assert first < anew - 0.5
    assert all(trained < nothing for _, trained, nothing in bits.values()), bits
