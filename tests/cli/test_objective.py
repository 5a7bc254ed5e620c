"""`anyformer train --objective`: encoders and encoder–decoders from one text, and what cannot start."""

import json
from pathlib import Path

import pytest

from anyformer import recipe
from anyformer.text import Tokenizer
from tests.cli.running import SIZES, answer, refused, run

pytestmark = pytest.mark.usefixtures("_quick")
LARGER = tuple(word for option in {**SIZES, "--vocab": "400"}.items() for word in option)


@pytest.mark.parametrize(
    ("architecture", "options", "kind", "specials"),
    [
        ("bert-base", (), "MaskedLM", 1),
        ("t5-small", (), "SpanCorruption", 100),
        ("bart-base", ("--objective", "denoising"), "Denoising", 1),
        ("gpt2", (), "CausalLM", 0),
        ("gpt2", ("--objective", "fill-in-the-middle"), "FillInTheMiddle", 3),
    ],
)
def test_an_objective_suits_its_architecture(
    tmp_path: Path, text: Path, architecture: str, options: tuple[str, ...], kind: str, specials: int
) -> None:
    out = tmp_path / "run"
    told = answer("train", architecture, "--data", text, "--out", out, *LARGER, *options)
    assert told["objective"] == kind
    assert told["validation"]["unigram_loss"] > 0
    assert (told["validation"]["bits_per_byte"] is not None) == (architecture == "gpt2")
    assert recipe.read(out / "recipe.yaml").objective.kind == kind
    tokenizer = Tokenizer.load(out / "tokenizer")
    assert len(tokenizer.special_ids) == 1 + specials
    assert tokenizer.vocab_size <= 400
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["unigram_loss"] == told["validation"]["unigram_loss"]
    again = answer("train", architecture, "--data", text, "--out", out, *LARGER, *options)
    assert again == told
    evaluated = answer("evaluate", out, "--data", text, "--held-out", "0.05", "--device", "cpu")
    assert evaluated["objective"] == kind
    for name in ("loss", "bits_per_byte"):
        assert evaluated[name] == (told["validation"][name] and pytest.approx(told["validation"][name], rel=1e-6))


def test_a_recipe_that_names_its_objective_keeps_it(tmp_path: Path, text: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("recipe: 1\nobjective: CausalLM\n", encoding="utf-8")
    wanted = ("--data", text, "--out", tmp_path / "run", *LARGER, "--recipe", file)
    refused(run("train", "bert-base", *wanted), "CausalLM does not go with this architecture")
    file.write_text("recipe: 1\nobjective: {kind: MaskedLM, rate: 0.3}\n", encoding="utf-8")
    assert answer("train", "bert-base", *wanted)["objective"] == "MaskedLM"
    assert recipe.read(tmp_path / "run" / "recipe.yaml").objective == recipe.MaskedLM(rate=0.3)


def test_what_cannot_start_is_refused_in_a_line(tmp_path: Path, text: Path) -> None:
    out = ("--out", tmp_path / "run", *LARGER)
    refused(
        run("train", "gpt2", "--data", text, *out, "--objective", "masked-lm"), "its masks are causal", "use CausalLM"
    )
    refused(
        run("train", "bert-base", "--data", text, *out, "--objective", "causal-lm"),
        "use MaskedLM (--objective masked-lm)",
    )
    refused(run("train", "bert-base", "--data", text, *out, "--objective", "ul2"), "it has no encoder")
    pairs = [word for word in out if word not in ("--seq-len", SIZES["--seq-len"])]
    refused(run("train", "t5-small", "--data", text, *pairs, "--objective", "seq2seq"), "Seq2Seq reads pairs of texts")
    Tokenizer.train([text.read_text()], 300).save(tmp_path / "plain")
    given = (*out, "--tokenizer", tmp_path / "plain")
    refused(run("train", "bert-base", "--data", text, *given), "no special token <mask>", "tokenizer train --special")
    refused(run("train", "t5-small", "--data", text, *given), "no special token <extra_id_0>")
    assert not (tmp_path / "run").exists()
