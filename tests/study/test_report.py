"""The report: one file that loads nothing, escapes everything, shows every run, and charts what the data say."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import RunFailed
from anyformer.study.curves import curves, smooth
from anyformer.study.plots import LABEL_HEIGHT, Drawing, loss_chart, nice_values
from anyformer.study.report import render_report, write_report
from anyformer.study.results import LossPoint, Study
from anyformer.study.statistics import analyse
from tests.study.studies import one_seed, run, three_seeds

VOID = {"meta", "line", "circle", "path", "rect", "br"}
NASTY = "<script>alert('x')</script>\"'&"


class Page(HTMLParser):
    """Collects text and attributes, and fails on tags that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"style", "script"}:
            self.text.append(data)


def page(study: Study) -> Page:
    return Page(render_report(study, analyse(study)))


def chart_of(study: Study) -> Drawing:
    chart = loss_chart(study, "tokens", width=1000, height=400)
    assert chart is not None
    return chart


@pytest.mark.parametrize("study", [one_seed(), three_seeds()])
def test_it_loads_nothing(study: Study, tmp_path: Path) -> None:
    html = write_report(study, tmp_path / "report.html", analyse(study)).read_text(encoding="utf-8")
    assert "http" not in html
    assert "@import" not in html
    assert re.findall(r"url\((?!#)", html) == []
    shown = Page(html)
    assert {name for name, _ in shown.attributes} & {"src", "href", "srcset", "action", "data", "xlink:href"} == set()
    assert set(shown.tags) & {"link", "iframe", "object", "embed", "img"} == set()
    assert shown.tags.count("script") == 1
    assert len(html.encode()) < 400_000
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_all_text_is_escaped() -> None:
    study = one_seed()
    runs = [replace(one, architecture=NASTY + str(at), sample=NASTY) for at, one in enumerate(study.runs)]
    runs[1] = replace(runs[1], failure=NASTY)
    fields = dict.fromkeys(
        ("title", "command", "tokenizer", "tokenizer_fingerprint", "flops_convention", "early"), NASTY
    )
    study = replace(
        study, runs=tuple(runs), prompt=NASTY[:4], notes=(NASTY,),
        settings=((NASTY, NASTY),), versions=((NASTY, NASTY),),
        data=replace(study.data, description=NASTY, fingerprint=NASTY),
        baselines=(replace(study.baselines[0], name=NASTY),),
        machine=replace(study.machine, description=NASTY), **fields,
        tuning=(replace(study.tuning[0], architecture=NASTY),),
    )  # fmt: skip
    html = render_report(study, analyse(study))
    assert html.count("<script>") == 1
    assert "alert('x')</script>" not in html
    shown = Page(html)
    assert "".join(shown.text).count(NASTY) > 15
    charts = [json.loads(value) for name, value in shown.attributes if name == "data-chart"]
    assert [series["name"] for series in charts[0]["series"]] == [f"{NASTY}{at}" for at in range(3)]
    assert not [name for name, _ in shown.attributes if name.startswith("on")]


def test_every_run_and_number_is_there() -> None:
    study = one_seed()
    text = " ".join("".join(page(study).text).split())
    for one in study.runs:
        assert one.architecture in text
    assert "Failed: the loss was NaN at step 141; lower the learning rate" in text
    first, _, last = study.runs
    assert f"{last.bits_per_byte:.4f}" in text
    assert f"{last.validation_loss:.4f}" in text
    assert f"−{abs((last.bits_per_byte or 0) - (first.bits_per_byte or 0)):.4f}" in text
    for known in (
        study.command,
        study.data.fingerprint,
        "torch 2.13.0",
        "No claim about training can be made",
        "0.003",
    ):
        assert known in text
    assert "def _read" in text


def test_several_seeds_show_the_failed_run_in_its_row() -> None:
    text = " ".join("".join(page(three_seeds()).text).split())
    assert "gpt2, seed 2Failed: out of memory at step 231" in text
    assert text.count("out of memory at step 231") == 2  # there, and among all runs
    assert "mean of 2 seeds" in text
    assert "95 % intervals over seeds" in text


def studies_at_the_edge() -> dict[str, Study]:
    study, failed = one_seed(), run("gpt2", 0, n_steps=3, failure="out of memory")
    bare = [replace(one, curve=(), validation=(), early_loss=None, sample="") for one in study.runs]
    many = [replace(run("gpt2", 0), architecture=f"architecture-number-{at}") for at in range(12)]
    return {
        "one run": replace(study, runs=study.runs[:1]),
        "all failed": replace(study, runs=(replace(failed, curve=()), replace(failed, architecture="b"))),
        "no curves": replace(study, runs=tuple(bare), baselines=(), tuning=(), notes=(), settings=(), prompt=""),
        "one point": replace(study, runs=tuple(replace(one, curve=one.curve[:1], validation=()) for one in study.runs)),
        "twelve": replace(study, runs=tuple(many)),
        "no peak": replace(study, machine=replace(study.machine, peak_flops_per_second=None)),
    }


@pytest.mark.parametrize("name", list(studies_at_the_edge()))
def test_studies_at_the_edge(name: str) -> None:
    study = studies_at_the_edge()[name]
    text = "".join(page(study).text)
    assert all(one.architecture in text for one in study.runs)
    for one in study.runs:
        text = text.replace(one.sample[len(study.prompt) :], "") if one.sample else text  # it holds a None of its own
    assert re.search(r"\b(nan|None|inf)\b", text) is None


def test_curves_are_drawn_where_the_data_are() -> None:
    study = replace(one_seed(), runs=(run("gpt2", 0),))
    flat = tuple(LossPoint(step, step * 100, 1.0, 1.0, 5.0) for step in range(1, 51))
    chart = chart_of(replace(study, runs=(replace(study.runs[0], curve=flat, validation=()),)))
    points = [tuple(map(float, pair.split(","))) for pair in chart["series"][0]["path"][1:].split("L")]
    middle = chart["y"](5.0)
    assert all(height == pytest.approx(middle, abs=0.06) for _, height in points)
    assert points[-1][0] == pytest.approx(chart["x"].end, abs=0.06)
    assert points[0][0] == pytest.approx(chart["x"].start + (chart["x"].end - chart["x"].start) * 100 / 5000, abs=0.06)


def test_unigram_line_is_at_its_loss() -> None:
    chart = chart_of(one_seed())
    (line,) = chart["baselines"]
    assert line.text == "unigram 6.20"
    low, high = chart["y"].low, chart["y"].high
    assert line.at == pytest.approx(
        chart["y"].start - (6.2 - low) / (high - low) * (chart["y"].start - chart["y"].end), abs=0.06
    )


def test_labels_do_not_overlap_or_leave_the_chart() -> None:
    for name in ("twelve", "one point"):
        chart = chart_of(studies_at_the_edge()[name])
        heights = sorted(series["label"] for series in chart["series"])
        assert all(b - a >= LABEL_HEIGHT - 0.11 for a, b in pairwise(heights))
        assert chart["y"].end <= heights[0] <= heights[-1] <= chart["y"].start


def test_a_failed_run_ends_in_a_cross() -> None:
    series = chart_of(one_seed())["series"][1]
    assert (series["finished"], series["value"]) == (False, "failed")
    assert series["broken"] == [series["end"]]
    assert chart_of(one_seed())["series"][0]["broken"] == []


def test_mean_over_seeds_is_the_mean() -> None:
    study = three_seeds()
    level = {seed: 4.0 + seed for seed in range(3)}
    runs = [
        replace(one, curve=tuple(p._replace(loss=level[one.seed]) for p in one.curve), validation=())
        for one in study.runs
        if one.architecture == "llama2"
    ]
    (curve,) = curves(replace(study, runs=tuple(runs)), "tokens")
    assert curve.main is not None
    assert curve.main.loss == pytest.approx(np.full(len(curve.main.loss), 5.0), abs=1e-9)
    assert len(curve.faint) == 3


def test_smoothing_keeps_a_straight_line_and_halves_noise() -> None:
    line = np.linspace(8.0, 3.0, 300)
    assert smooth(line) == pytest.approx(line, abs=1e-9)
    noise = np.random.default_rng(0).normal(size=300)
    assert np.std(smooth(line + noise) - line) < 0.5


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 10))
def test_ticks_are_round_within_and_about_as_many(low: float, span: float, n: int) -> None:
    high = low + span
    values = nice_values(low, high, n)
    assert all(low - 1e-6 * span <= value <= high + 1e-6 * span for value in values)
    assert n // 3 <= len(values) <= n + 1
    steps = np.diff(values)
    if len(steps):
        mantissa = steps[0] / 10 ** np.floor(np.log10(steps[0]) + 1e-6)
        assert np.isclose(mantissa, [1, 2, 5], rtol=1e-3).any()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"could not write the report .*No such file"):
        write_report(one_seed(), tmp_path / "missing" / "report.html", analyse(one_seed()))
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_could_not_be_put_in_place_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RunFailed, match=r"could not write the report"):
        write_report(one_seed(), tmp_path / "report.html", analyse(one_seed()))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_labels_that_crowd_at_the_top_move_down() -> None:
    flat = [tuple(LossPoint(step, step, 1.0, 1.0, loss) for step in range(1, 9)) for loss in (6.0, 6.0, 6.0, 2.0)]
    runs = tuple(replace(run("gpt2", 0), architecture=f"a{at}", curve=line) for at, line in enumerate(flat))
    labels = sorted(series["label"] for series in chart_of(replace(one_seed(), runs=runs, baselines=()))["series"])
    assert labels[0] >= 14.0  # the top of the chart's frame
    assert labels[2] - labels[0] == pytest.approx(2 * LABEL_HEIGHT, abs=0.11)
