"""`anyformer compare`: what it leaves behind, what it prints, what it does not do twice."""

import json
import math
from pathlib import Path

import pytest

from anyformer.disk.seal import read_seal, seal
from anyformer.families import preset
from anyformer.resizing import resize
from anyformer.spec import dumps
from anyformer.study.results import Study
from tests.cli.running import SIZES, everything, refused, run, succeeded, write_text

pytestmark = pytest.mark.usefixtures("_quick")
OPTIONS = tuple(word for option in SIZES.items() for word in option)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, trained: Path, text: Path) -> tuple[Path, list[str]]:
    """A comparison that has run, and its command."""
    out = tmp_path_factory.mktemp("compared") / "out"
    tokenizer = ("--tokenizer", str(trained / "tokenizer"))
    command = ["compare", "gpt2", "llama2", "--data", str(text), "--out", str(out), *tokenizer, *OPTIONS]
    succeeded(run(*command, "--prompt", "line", "--json"))
    return out, command


@pytest.fixture
def _untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        pytest.fail("what has run was trained again")

    monkeypatch.setattr("anyformer.study.compare.train", refuse)


@pytest.mark.usefixtures("_untrained")
class TestAgain:
    def test_the_answer(self, compared: tuple[Path, list[str]]) -> None:
        out, command = compared
        answer = json.loads(succeeded(run(*command, "--prompt", "line", "--json")).stdout)
        assert (answer["version"], answer["first"], answer["method"]) == (2, "gpt2", "documents")
        assert answer["report"] == str(out / "report.html")
        rows = answer["rows"]
        assert [row["architecture"] for row in rows] == ["gpt2", "llama2"]
        for row in rows:
            assert row["failures"] == []
            assert 0.8 * 60_000 < row["n_params"] < 1.25 * 60_000
            assert row["n_params"] == row["n_params_embedding"] + row["n_params_non_embedding"]
            assert row["perplexity"] == pytest.approx(math.exp(row["validation_loss"]))
            assert row["share_of_peak"] == pytest.approx(row["tokens_per_second"] * row["flops_per_token"] / 1e11)
        assert rows[0]["finding"]["difference"] is None
        difference = rows[1]["finding"]["score"]["value"] - rows[0]["finding"]["score"]["value"]
        assert rows[1]["finding"]["difference"]["value"] == pytest.approx(difference)
        study = Study.from_json((out / "study.json").read_text(encoding="utf-8"))
        assert study.architectures == ("gpt2", "llama2")
        assert [r.tokens_seen for r in study.runs] == [study.runs[0].tokens_seen] * 2
        assert (out / "runs.csv").read_text(encoding="utf-8").count("\n") == 3
        assert "llama2" in (out / "report.html").read_text(encoding="utf-8")

    def test_the_screen(self, compared: tuple[Path, list[str]]) -> None:
        out, command = compared
        shown = succeeded(run(*command, "--prompt", "line")).stdout
        for words in ("architecture", "bits per", "perplexity", "a sample of gpt2", "a sample of llama2"):
            assert words in shown or words.replace("perplexity", "plexity") in shown
        assert shown.splitlines()[-1] == f"report: {out / 'report.html'}"

    def test_another_prompt_is_continued_by_the_models_that_there_are(self, compared: tuple[Path, list[str]]) -> None:
        out, command = compared

        def samples(prompt: str) -> list[str]:
            succeeded(run(*command, "--prompt", prompt, "--json"))
            study = Study.from_json((out / "study.json").read_text(encoding="utf-8"))
            assert study.prompt == prompt
            return [run.sample for run in study.runs]

        first = samples("line")
        other = samples("the owl")
        assert all(sample.startswith("the owl") and len(sample) > 20 for sample in other)
        assert samples("line") == first

    def test_a_sample_does_not_steer_the_terminal(self, compared: tuple[Path, list[str]]) -> None:
        out, command = compared
        for file in (out / "runs").glob("*/result.json"):
            kept = read_seal(file, "")
            kept["result"] |= {
                "sample": "evil\x1b[2J\x1b]0;title\x07 :smile: [bold]x[/bold]\rgone\ttab",
                "prompt": "evil",
            }
            file.write_bytes(seal(kept))
        result = succeeded(run(*command, "--prompt", "evil"))
        assert "evil\\x1b[2J\\x1b]0;title\\x07 :smile: [bold]x[/bold]\\x0dgone" in result.stdout
        assert not set(result.stdout) & {"\x1b", "\x07", "\r"}
        succeeded(run(*command, "--prompt", "line"))


def test_a_prompt_that_leaves_no_room_is_refused_first(tmp_path: Path, text: Path, trained: Path) -> None:
    out, tokenizer = tmp_path / "out", ("--tokenizer", trained / "tokenizer")
    words = ("compare", "llama2", "gpt2", "--data", text, "--out", out, *tokenizer, *OPTIONS, "--prompt", "x" * 40)
    result = run(*words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "no room among the 32 learned positions of gpt2; give a shorter one" in result.stderr
    assert not out.exists()


def test_a_recipe_keeps_its_own_tokens_and_lengths(tmp_path: Path, text: Path, trained: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("recipe: 1\ntokens: 1024\nseq_len: 16\nbatch_tokens: 128\n", encoding="utf-8")
    out = tmp_path / "out"
    words = ("compare", "gpt2", "--data", text, "--out", out, "--tokenizer", trained / "tokenizer")
    succeeded(run(*words, "--recipe", recipe, "--params", "60k", "--device", "cpu"))
    study = Study.from_json((out / "study.json").read_text(encoding="utf-8"))
    settings = {name: value for name, value in study.settings}  # noqa: C416 (pairs of any length, to the type checker)
    told = (settings["tokens a run"], settings["tokens a row"], settings["tokens a batch"])
    assert told == ("1,024", "16", "128")
    spec = next((out / "runs").glob("*/spec.yaml")).read_text(encoding="utf-8")
    assert "n_positions: 16" in spec


def test_of_a_model_s_directory_the_architecture_alone_is_compared(tmp_path: Path, text: Path, trained: Path) -> None:
    words = (
        "--data",
        text,
        "--tokenizer",
        trained / "tokenizer",
        "--as-they-are",
        "--tokens",
        "256",
        "--device",
        "cpu",
    )
    rest = (*words, "--seq-len", "16", "--batch-tokens", "128", "--out", tmp_path / "out")
    said = succeeded(run("compare", trained, trained / "spec.yaml", *rest)).stderr
    assert said.count("trained anew") == 1
    assert (
        f"{trained} is an architecture here, trained anew; `anyformer evaluate` judges the weights that it has\n"
        in said
    )


def test_sizes_that_are_given_stay_the_context_too(tmp_path: Path, text: Path, trained: Path) -> None:
    given = ("--data", text, "--tokenizer", trained / "tokenizer", "--as-they-are", "--tokens", "1k", "--device", "cpu")
    spec = resize(preset("gpt2").spec, n_params=60_000, context=24, vocab_size=300)
    (tmp_path / "mine.yaml").write_text(dumps(spec), encoding="utf-8")
    words = ("compare", tmp_path / "mine.yaml", *given, "--batch-tokens", "128")
    result = run(*words, "--seq-len", "32", "--out", tmp_path / "out")
    refused(result, "mine: sequences of 32 tokens go beyond the model's 24 learned positions; use --seq-len 24 or less")
    succeeded(run(*words, "--seq-len", "16", "--out", tmp_path / "out"))
    spec = next((tmp_path / "out" / "runs").glob("*/spec.yaml")).read_text(encoding="utf-8")
    assert "n_positions: 24" in spec


def test_learned_positions_hold_what_is_restored(tmp_path: Path, text: Path) -> None:
    """T5 has none, and BART's are those of its target, which is longer than a row by what ends it."""
    objective = ("--objective", "span-corruption")
    command = (
        "compare",
        "t5-small",
        "bart-base",
        "--data",
        text,
        "--vocab",
        "400",
        *OPTIONS,
        "--out",
        tmp_path / "out",
    )
    refused(
        run(*command),
        "t5-small: CausalLM does not go with this",
        "it has an encoder; use SpanCorruption (--objective span-",
    )
    answer = json.loads(succeeded(run(*command, *objective, "--json")).stdout)
    assert [row["architecture"] for row in answer["rows"]] == ["t5-small", "bart-base"]


def test_the_remedy_for_long_targets_is_of_rows(tmp_path: Path, text: Path) -> None:
    spec = resize(preset("bart-base").spec, n_params=60_000, context=32, vocab_size=400)
    (tmp_path / "mine.yaml").write_text(dumps(spec), encoding="utf-8")
    words = ("train", tmp_path / "mine.yaml", "--data", text, "--vocab", "400", "--objective", "span-corruption")
    words = (
        *words,
        "--tokens",
        "1k",
        "--batch-tokens",
        "1024",
        "--device",
        "cpu",
        "--dry-run",
        "--out",
        tmp_path / "out",
    )
    says = "sequences of 33 tokens go beyond the model's 32 learned positions; use --seq-len 31 or less"
    refused(run(*words, "--seq-len", "32"), says)


def test_the_model_that_cannot_be_so_small_is_named(tmp_path: Path, text: Path, trained: Path) -> None:
    given = ("--data", text, "--tokenizer", trained / "tokenizer", "--params", "30k", "--out", tmp_path / "out")
    refused(run("compare", "llama2", "gemma3-1b", *given), "gemma3-1b: no model of this architecture has about 30,000")


def test_a_run_is_no_place_for_a_comparison(text: Path, trained: Path) -> None:
    before = everything(trained)
    refused(run("compare", "gpt2", "--data", text, *OPTIONS, "--out", trained), "is a run of `train`; give another one")
    assert everything(trained) == before


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path: Path, text: Path, trained: Path) -> None:
    out = tmp_path / "out"
    words = ("compare", "gpt2", "llama2", "--data", text, "--out", out, "--tokenizer", trained / "tokenizer", *OPTIONS)
    result = run(*words, "--lr", "1e30", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)["rows"]
    assert [row["architecture"] for row in rows] == ["gpt2", "llama2"]
    for row in rows:
        assert "is not finite at step " in row["failures"][0]["reason"]
        assert row["validation_loss"] is None


def test_the_runs_are_listed_by_the_name_of_their_architecture(compared: tuple[Path, list[str]], trained: Path) -> None:
    found = json.loads(succeeded(run("runs", compared[0], "--json")).stdout)["runs"]
    assert [(each["architecture"], each["state"]) for each in found] == [("gpt2", "finished"), ("llama2", "finished")]
    listing = json.loads(succeeded(run("runs", trained.parent, "--json")).stdout)
    assert (listing["version"], listing["directory"]) == (1, str(trained.parent))
    (only,) = listing["runs"]
    assert (only["name"], only["architecture"], only["step"], only["steps"]) == ("first", "llama2-7b", 16, 16)
    assert only["validation_loss"] > 0
    shown = succeeded(run("runs", trained.parent)).stdout
    assert "llama2-7b" in shown
    assert "16/16" in shown


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    assert "no runs in" in succeeded(run("runs", tmp_path)).stdout
    write_text(tmp_path / "text.txt")
    assert json.loads(succeeded(run("runs", tmp_path, "--json")).stdout)["runs"] == []


def test_labels_are_compared_by_accuracy(tmp_path: Path) -> None:
    rows = [
        {"text": f"number {i} of the {('cats', 'dogs')[i % 2]}", "label": ("cat", "dog")[i % 2]} for i in range(160)
    ]
    for name, part in (("train", rows[40:]), ("unseen", rows[:40])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    data = ("--data", tmp_path / "train.jsonl", "--validation-data", tmp_path / "unseen.jsonl", "--vocab", "300")
    command = (
        "compare",
        "bert-base",
        "gpt2",
        "--objective",
        "classification",
        *data,
        *OPTIONS,
        "--out",
        tmp_path / "out",
    )
    answer = json.loads(succeeded(run(*command, "--json")).stdout)
    assert (answer["score"], answer["higher"], answer["counted"]) == ("accuracy", True, "label")
    assert [row["architecture"] for row in answer["rows"]] == ["bert-base", "gpt2"]
    for row in answer["rows"]:
        assert 0 <= row["accuracy"] == row["finding"]["score"]["value"] == row["scores"][0] <= 1
        assert 0.8 * 60_000 < row["n_params"] < 1.25 * 60_000
        assert row["perplexity"] is None
    assert answer["baselines"][0]["score"] == 0.5
    shown = succeeded(run(*command)).stdout
    assert "accuracy" in shown
    assert "bits per" not in shown
    assert "a sample of" not in shown


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--objective", "seq2seq"), "architectures cannot be compared by Seq2Seq: it reads pairs of texts"),
        (("--objective", "contrastive"), "it reads pairs of texts"),
        (("--objective", "replaced-tokens"), "a generator of its own"),
        (("--objective", "masked-lm"), "MaskedLM does not go with this architecture: its masks are causal"),
        (("--objective", "classification"), "is no labelled text"),
        (("--truncate",), "--truncate is for examples that a row holds whole"),
    ],
)
def test_what_cannot_be_compared_is_one_line(given: tuple[str, ...], says: str, text: Path, tmp_path: Path) -> None:
    result = run("compare", "gpt2", "llama2", "--data", text, *OPTIONS, *given, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert says in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_results_on_another_text_are_not_written_over(compared: tuple[Path, list[str]], tmp_path: Path) -> None:
    out, command = compared
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"another line, number {i}" for i in range(400)))
    before = everything(out)
    given = [str(other) if word == command[command.index("--data") + 1] else word for word in command]
    refused(run(*given), "study.json holds a comparison on another text; give another --out")
    assert everything(out) == before
