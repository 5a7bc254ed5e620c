"""`anyformer train` and `evaluate`: a run from text to figures, the same command again, and what cannot start."""

import json
import math
from pathlib import Path

import click
import pytest

from anyformer.cli.options import Amount
from tests.cli.running import SMALL, run

PAIRS = tuple(word for i, word in enumerate(SMALL) if SMALL[i - i % 2] != "--seq-len")

pytestmark = pytest.mark.usefixtures("_quick")


def test_a_run_from_text_to_figures(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "run"
    result = run("train", "llama2-7b", "--data", text, "--out", out, *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["version"], told["steps"], told["out"]) == (1, 16, str(out))
    assert told["validation"]["perplexity"] == pytest.approx(math.exp(told["validation"]["loss"]))
    assert "needs about" in result.stderr
    assert "of disk" in result.stderr

    again = run("train", "llama2-7b", "--data", text, "--out", out, *SMALL, "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout) == told

    evaluated = run("evaluate", out, "--data", text, "--held-out", "0.05", "--device", "cpu", "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    figures = json.loads(evaluated.stdout)
    assert figures["seq_len"] == 32
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert figures[name] == pytest.approx(told["validation"][name], rel=1e-6)
    assert figures["bits_per_byte"] == pytest.approx(figures["nats"] / math.log(2) / figures["nbytes"])

    other = run("train", "llama2-7b", "--data", text, "--out", out, *SMALL, "--lr", "0.5")
    assert other.exit_code == 2
    assert "optimizer.lr is 0.001 there and 0.5 here" in other.stderr


def test_a_dry_run_writes_nothing(tmp_path: Path, text: Path) -> None:
    result = run("train", "gpt2", "--data", text, "--out", tmp_path / "run", *SMALL, "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    assert not (tmp_path / "run").exists()
    assert json.loads(result.stdout)["disk_nbytes"] == 12 * 4 * json.loads(result.stdout)["n_params"]


def test_a_dry_run_knows_the_run_that_is_there(tmp_path: Path, text: Path) -> None:
    given = ("train", "gpt2", "--data", text, "--out", tmp_path / "run", *SMALL)
    assert run(*given).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run/**/*")}
    ended = json.loads(run(*given, "--dry-run", "--json").stdout)
    assert (ended["done"], ended["steps"], ended["seconds"], ended["disk_nbytes"]) == (16, 16, None, 0)
    longer = json.loads(run(*given, "--tokens", "8192", "--dry-run", "--json").stdout)
    assert (longer["done"], longer["steps"]) == (16, 32)
    assert "it was to end after step 16" in longer["beyond"]
    assert 12 * longer["n_params"] <= longer["disk_nbytes"] < 3 * 12 * longer["n_params"]
    other = run(*given, "--lr", "0.5", "--dry-run")
    assert (other.exit_code, "optimizer.lr is 0.001 there and 0.5 here" in other.stderr) == (2, True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run/**/*")} == before


def test_what_is_refused_was_not_encoded(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    refused = run(
        "train",
        "gpt2",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        *SMALL,
        "--seq-len",
        "5000",
        "--batch-tokens",
        "5000",
        "--dry-run",
    )
    assert refused.exit_code == 2
    assert "5000 tokens go beyond" in refused.stderr
    assert not (tmp_path / "cache" / "encoded").exists()
    assert run("train", "gpt2", "--data", text, "--out", tmp_path / "run", *SMALL, "--dry-run").exit_code == 0
    assert len(list((tmp_path / "cache" / "encoded").glob("*/meta.json"))) == 2


def test_translation(tmp_path: Path) -> None:
    for name, letters in (("de", "abcd"), ("en", "ABCD")):
        lines = [" ".join(letters[(i * k) % 4] * 3 for k in range(1, 5)) for i in range(200)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = ("--source", tmp_path / "de", "--target", tmp_path / "en")
    result = run("train", "transformer-base", *files, "--out", tmp_path / "run", *PAIRS, "--json")
    assert result.exit_code == 0, result.stderr
    evaluated = run("evaluate", tmp_path / "run", *files, "--held-out", "0.05", "--device", "cpu", "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["documents"] == 10
    assert json.loads(evaluated.stdout)["loss"] == pytest.approx(
        json.loads(result.stdout)["validation"]["loss"], rel=1e-6
    )


def test_a_run_is_validated_on_files_of_their_own(tmp_path: Path, text: Path) -> None:
    for name in ("de", "en", "more.de", "more.en"):
        n = 12 if name.startswith("more") else 200
        (tmp_path / name).write_text("".join(f"{name[-2:]} a{i % 7} b{i % 5}\n" for i in range(n)), encoding="utf-8")
    files = ("--source", tmp_path / "de", "--target", tmp_path / "en")
    unseen = ("--validation-source", tmp_path / "more.de", "--validation-target", tmp_path / "more.en")
    result = run("train", "transformer-base", *files, *unseen, "--out", tmp_path / "pairs", *PAIRS, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    more = ("--source", tmp_path / "more.de", "--target", tmp_path / "more.en", "--device", "cpu", "--json")
    figures = json.loads(run("evaluate", tmp_path / "pairs", *more).stdout)
    assert figures["documents"] == 12
    assert figures["loss"] == pytest.approx(told["validation"]["loss"], rel=1e-6)

    looks = [json.loads(line) for line in (tmp_path / "pairs" / "metrics.jsonl").read_text().splitlines()]
    losses = {
        look["step"]: look["validation_loss"] for look in looks if "validation_loss" in look and not look["whole"]
    }
    lowest = min(losses, key=lambda step: losses[step])
    assert told["best"] == str(tmp_path / "pairs" / "checkpoints" / f"step-{lowest:08d}")

    (tmp_path / "unseen.txt").write_text("Some words that were not trained on.\n", encoding="utf-8")
    own = ("--validation-data", tmp_path / "unseen.txt")
    result = run("train", "gpt2", "--data", text, *own, "--out", tmp_path / "text", *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(
        run("evaluate", tmp_path / "text", "--data", tmp_path / "unseen.txt", "--device", "cpu", "--json").stdout
    )
    assert figures["loss"] == pytest.approx(json.loads(result.stdout)["validation"]["loss"], rel=1e-6)


WRONG = [
    (("--data", "{text}"), "--out is missing"),
    (("--data", "{text}", "--out", "{dir}/run", "--recipe", "smal"), "did you mean 'small'"),
    (("--data", "{text}", "--out", "{dir}/run", "--device", "cuds"), "did you mean 'cuda'"),
    (
        ("--data", "{text}", "--out", "{dir}/run", "--seq-len", "2048", "--batch-tokens", "2048"),
        "1024 learned positions",
    ),
    (("--data", "{text}", "--out", "{dir}/run", "--batch-tokens", "100"), "must be a multiple of seq_len"),
    (("--data", "{text}", "--out", "{dir}/run", "--batch-tokens", "32000", "--tokens", "1M"), "less than one batch"),
    (("--data", "{dir}/none.txt", "--out", "{dir}/run"), "no corpus at"),
    (("--data", "{text}", "--out", "{dir}/run", "--validation", "0"), "validation fraction"),
    (("--data", "{text}", "--out", "{dir}/run", "--resume"), "there is no run in"),
    (("--data", "{text}", "--out", "{dir}/run", "--init", "{dir}/none"), "none"),
    (("--data", "{text}", "--out", "{dir}/run", "--tokens", "many"), "write it as 3000000, 3M or 1.5B"),
    (("--data", "{text}", "--out", "{dir}/cache"), "holds no run but other things"),
    (("--data", "{text}", "--source", "{text}", "--target", "{text}", "--out", "{dir}/run"), "give either --data"),
    (("--source", "{text}", "--out", "{dir}/run"), "--source and --target go together"),
    (("--source", "{text}", "--target", "{text}", "--out", "{dir}/run"), "it has no encoder"),
    (
        ("--source", "{text}", "--target", "{text}", "--out", "{dir}/run", "--seq-len", "8"),
        "--seq-len 8: rows of Seq2Seq are as long as their pairs; leave it out",
    ),
    (
        ("--data", "{text}", "--validation-source", "{text}", "--out", "{dir}/run"),
        "--validation-source and --validation-target go together",
    ),
    (
        ("--data", "{text}", "--validation-source", "{text}", "--validation-target", "{text}", "--out", "{dir}/run"),
        "a run on text is validated on text: use --validation-data",
    ),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_start_is_one_line(tmp_path: Path, text: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "mine").touch()
    filled = [argument.format(text=text, dir=tmp_path) for argument in arguments]
    sizes = PAIRS if "--source" in filled else SMALL
    small = [value for i, value in enumerate(sizes) if sizes[i - i % 2] not in filled]
    result = run("train", "gpt2", *filled, *small)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "number"),
    [("3M", 3_000_000), ("1.5b", 1_500_000_000), ("800k", 800_000), ("4_096", 4096), ("1,234,567.8k", 1_234_567_800)],
)
def test_amounts(text: str, number: int) -> None:
    assert Amount().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["1,5M", "0,5B", "12,34,567", "1234,567", "1,", "1,000_000"])
def test_a_comma_parts_thousands(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match=f"'{text}' is not read here as a whole number; write it as 3000000, 3M or 1.5B"
    ):
        Amount().convert(text, None, None)
