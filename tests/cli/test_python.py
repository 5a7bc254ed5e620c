"""What a command prints as `--json` is what the call of its name returns: the same inputs, bit for bit."""

import inspect
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.costs.hardware.inference import plan_inference
from anyformer.costs.hardware.plan import hardware
from anyformer.errors import AnyformerError, TextError
from anyformer.measure.calibrate import fastest
from anyformer.notebook import as_html, as_text
from tests.cli.running import SMALL, answer, refused, run, succeeded

pytestmark = pytest.mark.usefixtures("_quick")
SIZES: dict[str, Any] = {"n_params": 6e4, "tokens": 2048.0, "seq_len": 32, "batch_tokens": 256, "device": "cpu"}
OPTIONS = ("--params", "60k", "--tokens", "2048", "--seq-len", "32", "--batch-tokens", "256", "--device", "cpu")
CLOCK = {"seconds", "tokens_per_second", "share_of_peak", "nbytes_per_second", "date", "command"}  # differ by the clock
LINES = ["the cat sits", "a dog sits on mat number 3"]


def timeless(value: Any) -> Any:
    """Without what the clock says, and as JSON would give it back."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in CLOCK}
    if isinstance(value, list | tuple):
        return [timeless(item) for item in value]
    return value


def test_train(tmp_path: Path, text: Path) -> None:
    said = answer(
        "train", "gpt2", "--data", text, "--out", tmp_path / "a", *OPTIONS, "--vocab", "300", "--z-loss", "0.01"
    )
    found = af.train(af.preset("gpt2"), text, out=tmp_path / "b", vocab_size=300, z_loss=0.01, **SIZES)
    told = json.loads(json.dumps(found.as_json()).replace(str(tmp_path / "b"), str(tmp_path / "a")))
    assert timeless(told) == timeless(said)
    assert found.recipe.z_loss == 0.01
    logs = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in "ab"]
    steps = [[json.loads(line).get("loss") for line in log] for log in logs]
    assert steps[0] == steps[1]
    (kept,) = {
        name: value for name, value in af.load(tmp_path / "a")[0].state_dict().items() if "norm.weight" in name
    }.values()
    assert torch.equal(kept, found.model.state_dict()["stack.norm.weight"])


def test_the_same_call_goes_on_whatever_rows_its_specification_has(tmp_path: Path, text: Path, trained: Path) -> None:
    given = dict(SIZES, tokenizer=trained / "tokenizer", out=tmp_path / "run", n_params=None)
    spec = af.resize(af.preset("gpt2"), n_params=60_000, vocab_size=512)
    assert af.train(spec, text, **given).model.spec.vocab_size == 512
    given["tokens"] = 4096.0
    assert af.train(spec, text, **given).result.steps[-1].step == 16


def test_a_plan(tmp_path: Path, text: Path) -> None:
    said = answer("train", "gpt2", "--data", text, "--out", tmp_path / "a", *OPTIONS, "--vocab", "300", "--dry-run")
    plan = af.prepare_training("gpt2", text, out=tmp_path / "a", vocab_size=300, **SIZES).plan()
    changing = {"memory_nbytes"}
    assert {k: v for k, v in timeless({"version": 1, **vars(plan)}).items() if k not in changing} == {
        k: v for k, v in timeless(said).items() if k not in changing
    }
    assert not (tmp_path / "a").exists()


def test_evaluate_and_generate(trained: Path, text: Path) -> None:
    said = answer("evaluate", trained, "--data", text, "--held-out", "0.05", "--device", "cpu")
    found = af.evaluate(trained, text, held_out=0.05, device="cpu")
    assert json.loads(json.dumps(found.as_json())) == said
    assert f"{said['loss']:.4f} nats a token" in str(found)
    model, tokenizer = af.load(trained)
    assert af.evaluate(model, text, held_out=0.05, tokenizer=tokenizer, seq_len=32).as_json() == found.as_json()
    words = (
        "generate",
        "line 3:",
        "--model",
        trained,
        "--temperature",
        "0.7",
        "--device",
        "cpu",
        "--max-new-tokens",
        "9",
    )
    written = af.generate(trained, None, "line 3:", temperature=0.7, max_new_tokens=9, device="cpu")
    assert written == answer(*words)["text"]


def test_compare(tmp_path: Path, text: Path, trained: Path) -> None:
    tokenizer = trained / "tokenizer"
    words = ("compare", "gpt2", "llama2", "--data", text, "--tokenizer", tokenizer, *OPTIONS)
    said = answer(*words, "--out", tmp_path / "a", "--prompt", "line")
    found = af.compare(
        ["gpt2", af.load_spec("llama2")], text, tokenizer=tokenizer, out=tmp_path / "b", prompt="line", **SIZES
    )
    told = found.as_json()
    assert told["report"] == str(tmp_path / "b" / "report.html")
    names = {"llama2": "32 layers of 4096"}  # a specification has no name
    for ours, theirs in zip(told["rows"], said["rows"], strict=True):
        assert ours["architecture"] == names.get(theirs["architecture"], theirs["architecture"])
        assert (ours["validation_loss"], ours["scores"]) == (theirs["validation_loss"], theirs["scores"])
    assert "".join(cells(found._repr_html_())).count("gpt2") >= 1


def test_tokenizers(tmp_path: Path, text: Path, trained: Path) -> None:
    said = answer("tokenizer", "train", text, "--kind", "wordpiece", "--vocab", "90", "--out", tmp_path / "a")
    found = af.tokenizer(text, kind="wordpiece", vocab_size=90)
    assert found.as_json() == said | {"out": None}
    assert found.tokenizer.fingerprint == af.Tokenizer.load(tmp_path / "a").fingerprint
    said = answer("tokenizer", "compare", "characters", tmp_path / "a", "--data", text, "--vocab", "50")
    with pytest.raises(TextError, match="there is nothing to compare; name at least one tokenizer"):
        af.compare_tokenizers([], text)
    both = af.compare_tokenizers(["characters", tmp_path / "a"], text, vocab_size=50)
    assert timeless(both.as_json()) == timeless(said)
    said = answer("tokenizer", "audit", "--model", trained, "--data", text, "--top", "5")
    assert af.audit(trained, data=text, top=5).as_json() == said


def test_embed_and_translate(trained: Path, tmp_path: Path) -> None:
    texts = [word for line in LINES for word in ("--text", line)]
    said = answer("embed", "--model", trained, *texts, "--device", "cpu")
    vectors = af.embed(trained, texts=LINES, device="cpu")
    assert said["width"] == vectors.shape[1]
    assert said["similarities"][0][1] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    with pytest.raises(AnyformerError, match="no encoder to read a source"):
        af.translate(trained, lines=LINES)


def test_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.measure.profile.fastest", lambda work, where, budget: fastest(work, where, 0.01))
    words = (
        "profile",
        "gpt2",
        "--params",
        "100k",
        "--vocab",
        "256",
        "--batch",
        "1",
        "--seq-len",
        "16",
        "--device",
        "cpu",
    )
    profiled = af.profile("gpt2", n_params=1e5, vocab_size=256, batch=1, seq_len=16, device="cpu")
    found, said = profiled.as_json(), answer(*words)
    assert (said.pop("model"), said.pop("calibrated")) == ("gpt2", False)
    assert set(found) == set(said)
    assert (found["n_params"], found["classes"]["training"]["contraction"]["flops"]) == (
        said["n_params"],
        said["classes"]["training"]["contraction"]["flops"],
    )
    printed = [re.sub(r"\d.*", "", said.partition("\n")[2]).split() for said in (str(profiled), run(*words).stdout)]
    assert printed[0]
    assert printed[0] == printed[1]


REFUSED: list[tuple[tuple[str, ...], str, tuple[Any, ...], dict[str, Any]]] = [
    (("train", "gpt2", "--dry-run"), "train", ("gpt2",), {}),
    (("train", "gpt2", "--data", "nowhere.txt", "--dry-run"), "train", ("gpt2", "nowhere.txt"), {}),
    (("train", "gpt2", "--data", "{text}", "--seq-len", "7", "--dry-run"), "train", ("gpt2", "{text}"), {"seq_len": 7}),
    (("evaluate", "nowhere", "--data", "{text}"), "evaluate", ("nowhere", "{text}"), {}),
    (("evaluate", "nowhere"), "evaluate", ("nowhere",), {}),
    (("generate", "x", "--model", "gpt2"), "generate", ("gpt2", None, "x"), {}),
    (
        ("compare", "gpt2", "--data", "{text}", "--objective", "seq2seq"),
        "compare",
        (["gpt2"], "{text}"),
        {"objective": "seq2seq"},
    ),
    (("tokenizer", "train", "nowhere", "--out", "o"), "tokenizer", ("nowhere",), {"out": "o"}),
    (("calibrate", "--dtype", "float23"), "calibrate", (), {"dtypes": ["float23"]}),
]


@pytest.mark.parametrize(("words", "name", "given", "options"), REFUSED, ids=lambda value: str(value)[:40])
def test_errors_are_of_one_text(
    text: Path, words: tuple[str, ...], name: str, given: tuple[Any, ...], options: dict[str, Any]
) -> None:
    fill = [str(text) if each == "{text}" else each for each in given]
    with pytest.raises(AnyformerError) as caught:
        getattr(af, name)(*fill, **options)
    assert caught.value.exit_status == 2
    result = run(*(word.format(text=text) for word in words))
    refused(result, " ".join(str(caught.value).split()))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tokenz": 5}, "neither a recipe nor its objective, CausalLM, has a field 'tokenz' (did you mean 'tokens'?)"),
        ({"objective": "masked"}, "there is no objective 'masked'"),
        ({"tokens": 0}, "Recipe.tokens = 0 must be at least 1"),
    ],
)
def test_a_field_that_no_recipe_has(text: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(AnyformerError, match=r".*") as caught:
        af.prepare_training("gpt2", text, **fields)
    assert says in str(caught.value)


def test_every_scalar_field_of_a_recipe_is_an_option() -> None:
    scalars = {
        name for name, kind in af.Recipe.types().items() if any(k in str(kind) for k in ("int", "float", "Literal"))
    }
    for command in ("train", "compare"):
        shown = succeeded(run(command, "--help")).stdout
        for name in (scalars | {"objective"}) - {"schedule"}:
            assert f"--{name.replace('_', '-')} " in shown, name


def test_none_turns_clipping_off(tmp_path: Path, text: Path) -> None:
    succeeded(run("train", "gpt2", "--data", text, "--out", tmp_path / "run", *SMALL, "--clip", "none"))
    assert af.Recipe.types()["clip"] == float | None
    assert "clip: null" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_names_stand_for_architectures_everywhere(tmp_path: Path) -> None:
    assert af.cost("gpt2") == af.cost(af.preset("gpt2"))
    assert af.parameters("gpt2").total == 124_439_808  # as its authors count
    (tmp_path / "mine.yaml").write_text(af.dumps("gpt2"))
    assert af.card(tmp_path / "mine.yaml") == af.card(af.load_spec("gpt2"))
    with pytest.raises(AnyformerError, match="did you mean 'gpt2'"):
        af.cost("gtp2")


class Cells(HTMLParser):
    """The texts of an HTML page, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def cells(html: str) -> list[str]:
    page = Cells()
    page.feed(html)
    assert "script" not in page.tags
    return page.texts


EVIL = "<script>alert('x')</script>&amp;"


def test_a_notebook_shows_data_with_every_text_escaped() -> None:
    told = {EVIL: EVIL, "n": 1234, "rows": [{EVIL: EVIL, "b": 0.5}, {"b": None}], "in": {"k": [1, 2]}, "none": []}
    assert cells(as_html(told, EVIL)) == [
        EVIL,
        EVIL,
        EVIL,
        "n",
        "1,234",
        "none",
        "rows",
        EVIL,
        "b",
        EVIL,
        "0.5",
        "in",
        "k",
        "1, 2",
    ]
    assert cells(as_html([{"a": i} for i in range(105)]))[-1] == "… 5 more"


def test_a_notebook_shows_specifications_and_results(trained: Path, text: Path) -> None:
    drawn = af.load_spec("gpt2")._repr_html_()  # type: ignore[attr-defined]
    assert drawn.startswith("<svg") or "<svg" in drawn[:200]
    texts = cells(drawn)
    assert {"vocabulary", "50,257"} <= set(texts)
    shown = {
        "CostReport": (af.cost("gpt2"), {"cache_nbytes", "total"}),
        "Plan": (af.plan("gpt2", on="8xH100"), {"mesh"}),
        "Diff": (af.diff("gpt2", "llama2"), {"effects"}),
    }
    for name, (result, holds) in shown.items():
        assert {name, *holds} <= set(cells(result._repr_html_()))
    found = cells(af.evaluate(trained, text, device="cpu")._repr_html_())
    assert {"TextEvaluation", "loss", "perplexity"} <= set(found)


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("cost gpt2 --device H100", lambda: af.cost("gpt2")),
        ("cost gpt2 --device H100", lambda: af.roofline("gpt2", device="H100")),
        ("plan gpt2 --hardware 8xH100", lambda: af.plan("gpt2", on="8xH100")),
        ("plan gpt2 --hardware 1xH100 --params 100B", lambda: af.plan(af.resize("gpt2", n_params=10**11), on="1xH100")),
        ("plan gpt2 --hardware 8xH100 --inference", lambda: plan_inference(af.load_spec("gpt2"), hardware("8xH100"))),
        ("diff gpt2 llama2", lambda: af.diff("gpt2", "llama2")),
        ("diff gpt2 gpt2", lambda: af.diff("gpt2", "gpt2")),
        ("diff gpt2 llama2 bert", lambda: af.side_by_side("gpt2", af.preset("llama2"), "bert")),
        ("show t5-small", lambda: af.card("t5-small")),
        ("show t5-small", lambda: af.diagram("t5-small")),
        ("show gpt2 --spec yaml", lambda: af.load_spec("gpt2")),
        ("history", af.history),
    ],
)
def test_a_result_prints_what_its_command_prints(
    words: str, result: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    first, _, others = str(result()).partition("\n")
    printed = run(*words.split()).stdout
    assert re.split(" on | served by ", first)[-1] in printed  # what stands before says which model
    assert others in printed


def test_data_without_words_of_its_own_is_printed_as_tables() -> None:
    told = {"n": 1234, "rows": [{"a": 1, "b": 0.5}, {"b": None}], "in_it": {"key": [1, 2]}, "none": []}
    assert as_text(told, "A title") == ("A title\nn     1,234\nnone\n\nrows\na  b\n1  0.5\n\n\nin it\nkey  1, 2")
    assert as_text({"rows": [{"a": 1}]}) == "rows\na\n1"


def test_signatures_are_those_of_the_calls() -> None:
    assert list(inspect.signature(af.train).parameters) == list(inspect.signature(af.prepare_training).parameters)
