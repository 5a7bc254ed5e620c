"""What a study found: each claim with its verdict and with what the study could have seen, losses, compute, a scaling law."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anyformer.amounts import count, prefixed
from anyformer.costs.scaling_law import ScalingLaw
from anyformer.errors import UsageError
from anyformer.study.paired import Interval, Spread, least_detectable, least_margin, spread_of
from anyformer.study.results import Tuning
from anyformer.study.ruling import Reported, Verdict, judged, losses_of
from anyformer.study.scaling import Scaling, scaling_of
from anyformer.study.specification import LessSensitive, LossPairSpec, StudySpec
from anyformer.study.windows import WindowLoss


@dataclass(frozen=True)
class Findings:
    """All that a study's runs allow to be said."""

    spec: StudySpec
    about: str  # the text, with its fingerprint
    runs: Reported
    tuning: tuple[Tuning, ...]
    verdicts: tuple[Verdict, ...]
    spread: Spread  # of paired differences at the largest size and budget
    scaling: Mapping[str, Scaling]  # by model
    seconds: float  # of training, all runs together

    def as_json(self) -> dict[str, Any]:
        """Plain data: verdicts, losses by seed, learning rates, laws and the best sizes."""
        return {
            "version": 1,
            "title": self.spec.title,
            "data": self.about,
            "verdicts": [
                {"claim": one.claim.says, "kind": one.claim.kind, "ruling": one.ruling, "said": one.said}
                for one in self.verdicts
            ],
            "spread": {"sd": self.spread.sd if self.spread.df else None, "df": self.spread.df},
            "losses": [
                {
                    "model": name, "n_params": size, "tokens": tokens,
                    "seeds": {run.seed: run.validation_loss for run in runs},
                    "failures": {run.seed: run.failure for run in runs if run.failure},
                    "flops": next((run.flops for run in runs if run.finished), None),
                }
                for (name, size, tokens), runs in self.runs.items()
            ],
            "learning_rates": [
                {"model": one.architecture, "n_params": one.size, "learning_rate": one.chosen} for one in self.tuning
            ],
            "laws": {name: vars(one.law) for name, one in self.scaling.items()},
            "equal_flops": {name: [vars(level) for level in one.levels] for name, one in self.scaling.items()},
            "seconds": self.seconds,
        }  # fmt: skip


def find(spec: StudySpec, about: str, runs: Reported, tuning: tuple[Tuning, ...]) -> Findings:
    """What the reported runs say of the claims."""
    size, tokens = max(spec.sizes), max(spec.tokens)
    spread = spread_of({model.name: losses_of(runs[model.name, size, tokens]) for model in spec.models})
    seconds = sum(run.seconds for each in runs.values() for run in each)
    return Findings(spec, about, runs, tuning, judged(spec, runs, tuning), spread, _scaling(spec, runs), seconds)


def foreseen(spec: StudySpec) -> str:
    """What the study can see, said before it has run, by the spread that its file assumes."""
    tests = sum(isinstance(claim, LossPairSpec | LessSensitive) for claim in spec.claims)
    variants = max(1, len(spec.models) - 1)
    df = variants * (spec.seeds - 1)
    if not df:
        return "one seed: no difference can be told from chance"
    least = least_detectable(spec.seeds, df, max(1, tests)) * spec.sd
    margin = least_margin(spec.seeds, df) * spec.sd
    return (
        f"with {spec.seeds} seeds and paired differences of deviation {spec.sd:g}, pooled over {variants}: the least difference "
        f"found four times in five is {least:.4f} nats a token, the least margin of equality {margin:.4f}"
    )


def _scaling(spec: StudySpec, runs: Reported) -> dict[str, Scaling]:
    """That of each model that has runs enough: three sizes and three budgets."""
    found = {}
    if len(spec.sizes) < 3 or len(spec.tokens) < 3:
        return {}
    for model in spec.models:
        try:
            own = [run for (name, *_), each in runs.items() if name == model.name for run in each]
            found[model.name] = scaling_of(own)
        except UsageError:
            continue  # too many of its runs failed
    return found


LAST = 64  # tokens of a window that the page tells apart, where it has more


def _by_length(found: Findings) -> Iterator[str]:
    """Lines of the losses in windows of several lengths and by position, means over seeds."""
    if not found.spec.lengths:
        return
    longest = max(found.spec.lengths)
    ends = [0, *(2**k for k in range(4, longest.bit_length())), longest]
    spans = sorted({(max(1, low), high) for low, high in itertools.pairwise(ends) if low < high})
    positions = (f"at {low}–{high - 1}" for low, high in spans)
    yield ""
    yield f"Nats a token in windows within documents, means over seeds; the last {LAST} tokens are the same at every length."
    yield ""
    yield f"| model | parameters | tokens | window | all | last {LAST} | {' | '.join(positions)} |"
    yield f"|---|---:|---:|---:|---:|---:|{'---:|' * len(spans)}"
    for (name, _, tokens), runs in found.runs.items():
        by_length: dict[int, list[WindowLoss]] = {}
        for window in (window for run in runs for window in run.windows):
            by_length.setdefault(window.length, []).append(window)
        for length, each in sorted(by_length.items()):
            means = [_mean(one.loss() for one in each), _mean(one.loss(LAST) for one in each) if length > LAST else "–"]
            means += [_mean(one.between(*span) for one in each) if span[1] <= length else "–" for span in spans]
            n_params = count(runs[0].n_params)
            yield f"| {_cell(name)} | {n_params} | {count(tokens)} | {length:,} | {' | '.join(means)} |"


def _cell(text: str | None) -> str:
    """Text in a cell of a table, which a bar in it would end."""
    return str(text).replace("|", "\\|")


def _mean(values: Iterable[float]) -> str:
    return f"{fmean(values):.4f}"


def as_markdown(found: Findings, command: str) -> str:
    """The findings as a page."""
    return "\n".join(_lines(found, command)) + "\n"


def _lines(found: Findings, command: str) -> Iterator[str]:
    spec = found.spec
    ratio = f"{max(spec.tokens) / max(spec.sizes):.2g}"
    yield f"# {spec.title}"
    yield ""
    reach = f"Up to {spec.sized(max(spec.sizes))} and {count(max(spec.tokens))} tokens"
    yield f"{reach}, {ratio} token{'s' * (ratio != '1')} a parameter."
    yield f"Data: {found.about}. {found.seconds / 60:.1f} minutes of training in the reported runs. Command: `{command}`."
    yield ""
    yield f"Said before the runs: {foreseen(spec)}."
    if found.spread.df:
        yield f"Measured: deviation {found.spread.sd:.4f} of paired differences, {found.spread.df} degrees of freedom."
    if found.verdicts:
        yield from ("", "| claim | verdict | numbers |", "|---|---|---|")
        yield from (f"| {_cell(one.claim.says)} | **{one.ruling}** | {one.said} |" for one in found.verdicts)
    yield from ("", "| model | parameters | tokens | lr | loss by seed, nats a token | mean | FLOPs | tokens/s |")
    yield "|---|---:|---:|---:|---|---:|---:|---:|"
    for (name, _, tokens), runs in found.runs.items():
        losses = losses_of(runs)
        mean = f"{sum(losses.values()) / len(losses):.4f}" if losses else "–"
        each = [f"{losses[run.seed]:.4f}" if run.seed in losses else f"failed: {_cell(run.failure)}" for run in runs]
        one, done = runs[0], [run for run in runs if run.finished]
        cost = f"{prefixed(done[0].flops)} | {fmean(run.tokens_per_second for run in done):,.0f}" if done else "– | –"
        yield (
            f"| {_cell(name)} | {count(one.n_params)} | {count(tokens)} | {one.learning_rate:g} | {', '.join(each)} | "
            f"{mean} | {cost} |"
        )
    yield from _by_length(found)
    if found.tuning:
        n = len(spec.choosing)
        seeds = "a seed that are" if n == 1 else f"{n} seeds that are"
        what = "loss there" if n == 1 else "mean loss there"
        rule = f"; of those within {spec.rate_tie:g} nats of the best the lowest" if spec.rate_tie else ""
        rule = "; the bottom of the parabola through the best and its neighbours" if spec.rate_between else rule
        yield from ("", f"Learning rates, chosen on a part of the text and {seeds} not reported ({what}{rule}):", "")
        for one in found.tuning:
            by_rate = [(trial.learning_rate, trial.validation_loss) for trial in one.trials]
            tried = (f"{rate:g} {'failed' if loss is None else f'{loss:.4f}'}" for rate, loss in by_rate)
            size = f", {spec.sized(one.size)}" if one.size and len(spec.sizes) > 1 else ""
            beyond = "; the best is the last that was tried: one beyond it may be better" if one.at_the_end else ""
            yield f"- {one.architecture}{size}: {', '.join(tried)}; chosen {one.chosen:g}{beyond}"
    yield from _laws(found)


def _laws(found: Findings) -> Iterator[str]:
    """Lines of what each model's loss is by size and text, and of which size is the best for as many FLOPs."""
    if not found.scaling:
        return
    flops = max(run.flops for runs in found.runs.values() for run in runs)
    asked: dict[str, tuple[Callable[[ScalingLaw], float], str]] = {
        "E": (lambda law: law.E, ".3f"),
        "A": (lambda law: law.A, ".4g"),
        "B": (lambda law: law.B, ".4g"),
        "α": (lambda law: law.alpha, ".3f"),
        "β": (lambda law: law.beta, ".3f"),
        "a": (lambda law: law.exponent, ".3f"),
        "D/N": (lambda law: law.optimum(flops)[1] / law.optimum(flops)[0], ".3g"),
    }
    yield ""
    yield "L(N, D) = E + A / N^α + B / D^β in nats a token, for the range that was run alone. The best size goes with FLOPs^a;"
    yield f"D/N is its tokens a parameter at {prefixed(flops, 'FLOPs')}, by 6 N D. In brackets: the middle 95 % of fits to runs"
    yield "drawn with replacement."
    yield ""
    yield f"| model | {' | '.join(asked)} |"
    yield f"|---|{'---:|' * len(asked)}"
    for name, one in found.scaling.items():
        cells = (_between(one.interval(of), digits) for of, digits in asked.values())
        yield f"| {_cell(name)} | {' | '.join(cells)} |"
    if any(one.levels for one in found.scaling.values()):
        yield ""
        yield "Of equal FLOPs, between budgets of each size; the best by a parabola in the logarithm of size, – where it lies"
        yield "beyond those run:"
        yield ""
        yield "| model | FLOPs | loss by parameters | best size | its loss |"
        yield "|---|---:|---|---:|---:|"
    for name, one in found.scaling.items():
        for level in one.levels:
            losses = ", ".join(f"{count(n)} {loss:.4f}" for n, loss in level.losses.items())
            best = f"{count(level.best[0])} | {level.best[1]:.4f}" if level.best else "– | –"
            yield f"| {_cell(name)} | {prefixed(level.flops)} | {losses} | {best} |"


def _between(interval: Interval | None, digits: str) -> str:
    if interval is None:
        return "–"
    ends = interval.ends(f"{{:{digits}}}".format)
    return f"{interval.value:{digits}}" + (f" ({ends})" if ends else "")
