"""A comparison as one HTML file that needs nothing else: styles, charts and data are inside, and it opens offline."""

from pathlib import Path

from anyformer.amounts import count, counted, gigabytes, prefixed, signed
from anyformer.disk.atomic import write_named
from anyformer.notebook import page_template
from anyformer.study.plots import difference_chart, loss_chart, score_chart
from anyformer.study.results import Study
from anyformer.study.statistics import Analysis
from anyformer.study.table import ResultRow, fixed, result_rows

WIDE, HALF = 1040, 506  # pixels: the page's text width, and half of it less the gap


def write_report(study: Study, path: str | Path, analysis: Analysis) -> Path:
    """Write the report of `study` to `path` (an .html file, replaced as a whole) and return the path.

    Raises RunFailed if the file cannot be written; a former report is then still there.
    """
    target = Path(path)
    write_named(target, render_report(study, analysis).encode(), "the report ")
    return target


def render_report(study: Study, analysis: Analysis) -> str:
    """The report as one HTML document. All text of `study` is escaped."""
    rows = result_rows(study, analysis)
    return page_template("anyformer.study", "report").render(
        study=study, analysis=analysis, rows=rows, headline=_headline(study, analysis, rows), best=_best(study, rows),
        budget=max(run.tokens_seen for run in study.runs),
        judged=study.judged, of_text=study.score == "bits_per_byte", apart=study.score != "loss",
        single=all(len(study.of(name)) == 1 for name in study.architectures),
        scores=score_chart(study, analysis, width=HALF), differences=difference_chart(study, analysis, width=HALF),
        by_tokens=loss_chart(study, "tokens", width=WIDE, height=400, label_width=150),
        by_flops=loss_chart(study, "flops", width=HALF, height=330),
        by_seconds=loss_chart(study, "seconds", width=HALF, height=330),
        samples=_samples(study), most_trials=max((len(tuning.trials) for tuning in study.tuning), default=0),
        verdicts=[(at, one) for at, one in enumerate(analysis.findings) if one.architecture != analysis.first],
        count=count, counted=counted, fixed=fixed, gigabytes=gigabytes, prefixed=prefixed, signed=signed,
    )  # fmt: skip


def _best(study: Study, rows: tuple[ResultRow, ...]) -> str | None:
    scores = {row.architecture: row.finding.score.value for row in rows if row.finding.score}
    pick = max if study.judged.higher else min
    return pick(scores, key=lambda name: scores[name]) if scores else None


def _headline(study: Study, analysis: Analysis, rows: tuple[ResultRow, ...]) -> list[tuple[str, str]]:
    """The report's first sentences as pairs of text and style: who came out best, and what may be claimed."""
    best, judged = _best(study, rows), study.judged
    if best is None:
        return [("No run finished.", "strong"), (" The table says why.", "")]
    finding = analysis.of(best)
    assert finding.score is not None  # that is how the best was found
    text = [(best, "strong"), (f" came out at {finding.score.value:.3f} {judged.words}", "")]
    if sum(row.finding.score is not None for row in rows) == 1:
        return [*text, (", the only one to finish." if len(rows) > 1 else ".", "")]
    text.append((", the highest" if judged.higher else ", the lowest", ""))
    if finding.difference is not None:
        side = "above" if judged.higher else "below"
        text += [(f": {abs(finding.difference.value):.3f} {side} ", ""), (analysis.first, "name")]
    if analysis.method == "documents":
        return [*text, (". Each was trained once, so this is no claim about the architectures.", "")]
    claimed = [one.architecture for one in analysis.findings if one.claim]
    about = "a" if claimed else "no"
    text += [(f". Over the seeds, {about} difference to ", ""), (analysis.first, "name"), (" can be claimed", "")]
    for at, name in enumerate(claimed):
        joint = " for " if at == 0 else " and " if at == len(claimed) - 1 else ", "
        text += [(joint, ""), (name, "name")]
    return [*text, (".", "")]


def _samples(study: Study) -> list[tuple[int, object]]:
    """For each architecture its place and its first run with a sample."""
    first = [next((run for run in study.of(name) if run.sample), None) for name in study.architectures]
    return [(at, run) for at, run in enumerate(first) if run is not None]
