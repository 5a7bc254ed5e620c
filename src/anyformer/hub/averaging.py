"""The mean of models of one architecture: of a run's last checkpoints (Vaswani et al. 2017, section 6.1), or of models trained
apart from one start (soups: Wortsman et al. 2022, arXiv:2203.05482)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyformer.disk.run_layout import CHECKPOINTS, checkpoints_in, is_complete, step_and_again
from anyformer.errors import CheckpointError, UsageError
from anyformer.hub.loading import tokenizer_of
from anyformer.hub.source import Source, find
from anyformer.spec import first_difference, short


def averaged(source: str | Path, last: int | None = None, others: Sequence[str | Path] = ()) -> Source:
    """A source whose tensors are the means of several models': the `last` checkpoints of a run, or its latest, and `others`.

    Raises UsageError for a run of fewer, CheckpointError for models whose architectures, files or tokenizers differ.
    """
    paths = [*_checkpoints(Path(source), last), *others]
    first, *more = map(find, paths)
    own = _fingerprint(first)
    for path, other in zip(paths[1:], more, strict=True):
        if (differs := first_difference(first.spec, other.spec)) is not None:
            name, ours, theirs = differs
            raise CheckpointError(
                f"{path} is another architecture than {source}: {name} is {short(theirs)} and {short(ours)}; models of one "
                "architecture have a mean"
            )
        if first.family is not other.family:
            raise CheckpointError(
                f"{path} has its tensors in another form than {source}; bring both into one by `convert` first"
            )
        if other.tokenizer != first.tokenizer and _fingerprint(other) != own:  # checkpoints of a run have one
            raise CheckpointError(f"{path} has another tokenizer than {source}; a mean of their tables means nothing")
    return first._replace(others=tuple(more))


def _fingerprint(source: Source) -> str | None:
    tokenizer = tokenizer_of(source)
    return None if tokenizer is None else tokenizer.fingerprint


def _checkpoints(run: Path, last: int | None) -> list[Path]:
    """The last so many checkpoints of a run, the latest first; None: what lies there."""
    if last is None:
        return [run]
    if last < 1:
        raise UsageError(f"--average {last} is no number of checkpoints; give 1 or more")
    by_step = {step_and_again(path): path for path in checkpoints_in(run / CHECKPOINTS) if is_complete(path)}
    held = list({step[0]: path for step, path in by_step.items() if step}.values())  # one of each step, the last saved
    if len(held) < last:
        raise UsageError(
            f"{run} holds {len(held)} checkpoints, fewer than --average {last}; name a run, or train it with --keep {last}"
        )
    return held[: -last - 1 : -1]
