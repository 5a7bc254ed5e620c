"""Results as data: what is derived, what is refused, and that JSON and CSV hold everything."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from anyformer.errors import UsageError
from anyformer.study.describe import of_text
from anyformer.study.results import CSV_COLUMNS, DocumentLoss, LossPoint, RunResult, Study
from anyformer.text import EncodedCorpus
from tests.oracles.kneser_ney import BEGIN, KneserNey
from tests.study.studies import one_seed, run, three_seeds


def test_scores_follow_from_the_documents() -> None:
    # 8 and 4 bits in 4 and 2 bytes over 2 and 4 tokens: 12 bits, 6 bytes, 6 tokens
    bits = math.log(2)
    result = replace(run("gpt2", 0), documents=(DocumentLoss(8 * bits, 2, 4), DocumentLoss(4 * bits, 4, 2)))
    assert result.bits_per_byte == pytest.approx(2.0, rel=1e-12)
    assert result.validation_loss == pytest.approx(2 * bits, rel=1e-12)
    assert result.perplexity == pytest.approx(4.0, rel=1e-12)
    assert result.n_params_non_embedding + result.n_params_embedding == result.n_params


def test_what_reads_nothing_is_counted_on_the_validation_text() -> None:
    """By hand: training counts plus one of 4 tokens are 3, 2, 1, 1 of 7; then 1 and 0 are predicted, in 5 bytes."""
    train = EncodedCorpus(np.array([3, 0, 0, 1]), np.array([0, 4]), np.array([9]), 4, "train")
    unseen = EncodedCorpus(np.array([3, 1, 0]), np.array([0, 3]), np.array([5]), 4, "unseen")
    unigram, uniform, grams = of_text(train, unseen, 1000)
    nats = -math.log(2 / 7) - math.log(3 / 7)
    assert (unigram.name, uniform.name) == ("unigram", "uniform")
    assert unigram.loss == pytest.approx(nats / 2)
    assert unigram.score == pytest.approx(nats / math.log(2) / 5)
    oracle = KneserNey([(0, 0, 1)], 5, 4)
    expected = -math.log(oracle.probability((BEGIN,), 1)) - math.log(oracle.probability((BEGIN, 1), 0))
    assert (grams.name, grams.loss) == ("5-gram (Kneser–Ney)", pytest.approx(expected / 2))
    assert grams.score == pytest.approx(expected / math.log(2) / 5)
    assert (uniform.loss, uniform.score) == (pytest.approx(math.log(4)), pytest.approx(2 * 2 / 5))


@pytest.mark.parametrize("study", [one_seed(), three_seeds()])
def test_json_round_trip(study: Study) -> None:
    assert Study.from_json(study.to_json()) == study


def test_json_is_standard_even_with_a_loss_that_is_not_a_number() -> None:
    study = one_seed()
    broken = replace(study.runs[1], curve=(LossPoint(1, 2, 3.0, 4.0, math.nan),))
    text = replace(study, runs=(study.runs[0], broken)).to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert math.isnan(Study.from_json(text).runs[1].curve[0].loss)
    assert Study.from_json(text).runs[1].curve[0][:4] == (1, 2, 3.0, 4.0)


def edited(**changes: object) -> str:
    data = json.loads(one_seed().to_json())
    return json.dumps({**data, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no valid JSON at line 1"),
        ("[]", "anyformer-study"),
        ('{"format": "other"}', "anyformer-study"),
        (edited(version=1), "version 1"),
        (edited(titel="x"), r"no field 'titel' \(did you mean 'title'\?\)"),
        (edited(title=3), "study.title must be str, not 3"),
        (edited(data={}), "study.data lacks its field 'description'"),
        (edited(baselines=[{"name": "unigram", "score": "2", "loss": 1}]), r"study.baselines\[0\].score must be"),
        (edited(score="bleu"), "not judged by 'bleu'; there are bits_per_byte, accuracy, loss"),
        (edited(score="accuracy"), "does not say which labels were right"),
        (edited(machine=[]), "study.machine must be an object"),
        (edited(notes="one"), "study.notes must be an array"),
    ],
)
def test_what_is_no_study_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Study.from_json(text)


def test_a_point_of_the_wrong_length_is_refused() -> None:
    data = json.loads(one_seed().to_json())
    data["runs"][0]["curve"][3] = [1, 2]
    with pytest.raises(UsageError, match=r"study.runs\[0\].curve\[3\] must hold 5 values \(step, tokens"):
        Study.from_json(json.dumps(data))


def test_studies_that_cannot_be_compared_are_refused() -> None:
    first, second = run("gpt2", 0), run("llama2", 0)
    with pytest.raises(UsageError, match="two runs 'gpt2, seed 0'"):
        replace(one_seed(), runs=(first, first))
    with pytest.raises(UsageError, match="different documents"):
        replace(one_seed(), runs=(first, replace(second, documents=second.documents[1:])))
    with pytest.raises(UsageError, match="at least one run"):
        replace(one_seed(), runs=())
    with pytest.raises(UsageError, match="finished without validation documents"):
        replace(first, documents=())
    with pytest.raises(UsageError, match="0 tokens"):
        replace(first, documents=(DocumentLoss(1.0, 0, 1),))


def test_csv_has_one_row_a_run_and_empty_cells_for_a_failed_one() -> None:
    study = one_seed()
    header, *lines = csv.reader(io.StringIO(study.to_csv()))
    assert header == [column for column in CSV_COLUMNS if column != "accuracy"]
    assert len(lines) == 3
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [row["architecture"] for row in rows] == ["transformer-lm", "gpt2", "llama2"]
    assert rows[1]["validation_loss"] == rows[1]["bits_per_byte"] == rows[1]["perplexity"] == ""
    assert rows[1]["failure"].startswith("the loss was NaN at step 141; lower")
    llama = study.runs[2]
    nats, nbytes = sum(d.nats for d in llama.documents), sum(d.nbytes for d in llama.documents)
    assert float(rows[2]["bits_per_byte"]) == pytest.approx(nats / nbytes / math.log(2), rel=1e-12)
    assert float(rows[2]["flops"]) == pytest.approx(llama.flops_per_token * 400 * 2048)
    assert rows[2]["failure"] == ""


def test_every_number_of_a_run_is_in_the_csv() -> None:
    scalars = {name for name, kind in RunResult.__annotations__.items() if "tuple" not in str(kind)} - {
        "sample",
        "prompt",
    }
    assert scalars <= set(CSV_COLUMNS)
