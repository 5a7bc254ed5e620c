"""Several models as one source: a run's last checkpoints, models trained apart from one start, and what these began as. Whether
they go together is found out here; how they become one is `hub/merging.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from anyformer.disk.run_layout import CHECKPOINTS, checkpoints_in, is_complete, step_and_again
from anyformer.errors import CheckpointError, UsageError
from anyformer.families.hf.mapping import computed
from anyformer.hub.labels import labels_of, other_labels
from anyformer.hub.loading import tokenizer_of
from anyformer.hub.merging import Mean, Merge, Merging, way_of
from anyformer.hub.source import ModelSource, find
from anyformer.spec import first_difference, short
from anyformer.spec.ranges import HUGE

Others = Sequence[str | Path] | Mapping[str, float] | Mapping[Path, float]  # models, or what each weighs


def merged_source(
    source: str | Path,
    last: int | None = None,
    others: Others = (),
    by: str | Merge | None = None,
    base: str | Path | None = None,
    dtype: torch.dtype | None = None,
) -> ModelSource:
    """A source whose tensors are merged ones of several models': the `last` checkpoints of a run, or its latest, and `others`.

    Each weighs 1, or what `others` maps it to. `by`: how, by default their mean; `base`: the model that all began as, which
    some ways read; `dtype`: of what is merged, by default that which holds all models'. Raises UsageError for a run of fewer
    checkpoints, and for weights, ways and a base that do not go together, CheckpointError for models whose architectures,
    files, tokenizers or labels differ.
    """
    way = (way_of(by) if isinstance(by, str) else by) or Mean()
    weighed = [
        *((path, 1.0) for path in _checkpoints(Path(source), last)),
        *(others.items() if isinstance(others, Mapping) else ((path, 1.0) for path in others)),
    ]
    for path, weight in weighed:
        if not isinstance(path, str | Path):
            what = type(path).__name__
            raise UsageError(f"--with: a value of the class {what} is no path; save the model, and name its directory")
        if not isinstance(weight, int | float) or not abs(weight) <= HUGE:
            raise UsageError(f"--with {path}: its weight is no number that float32 holds; give one such as {path}=0.5")
    paths, weights = [path for path, _ in weighed], tuple(weight for _, weight in weighed)
    if len(paths) == 1:
        if by is not None or base is not None:
            raise UsageError("--by and --base are for several models; name those to merge by --with")
        return find(paths[0])
    way.check(weights, base is not None)
    paths += [] if base is None else [base]
    first, *more = map(find, paths)
    own, labels, spec = _fingerprint(first), labels_of(first), computed(first.spec)
    for path, other in zip(paths[1:], more, strict=True):
        if (differs := first_difference(spec, computed(other.spec))) is not None:
            name, ours, theirs = differs
            raise CheckpointError(
                f"{path} is another architecture than {source}: {name} is {short(theirs)} and {short(ours)}; models of one "
                "architecture are merged"
            )
        if first.family is not other.family:
            raise CheckpointError(
                f"{path} has its tensors in another form than {source}; bring both into one by `convert` first"
            )
        if other.tokenizer != first.tokenizer and _fingerprint(other) != own:  # checkpoints of a run have one
            raise CheckpointError(f"{path} has another tokenizer than {source}; their tables are of other tokens")
        if other_labels(labels_of(other), labels):
            theirs, ours = (", ".join(each or ()) for each in (labels_of(other), labels))
            raise CheckpointError(
                f"{path} has other labels than {source}: {theirs} and {ours}; models of the same labels, in one "
                "order, are merged"
            )
    return first._replace(others=tuple(more), merging=Merging(way, weights, dtype))


def _fingerprint(source: ModelSource) -> str | None:
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
