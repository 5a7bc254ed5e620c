"""A checkpoint here and in transformers, layer by layer: where they first differ, measured by transformers' own kernels."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.families.hf.composite import composite_of
from anyformer.families.hf.mapping import class_of
from anyformer.families.hf.pooling import without_pooling
from anyformer.hub import load
from anyformer.hub.source import ModelSource, find
from anyformer.inference.opened import at_least_one
from anyformer.layers import LSHAttentionSpec
from anyformer.layers.recurrence import RecurrentSpec
from anyformer.model import Transformer
from anyformer.notebook import ShowsItself
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer

VERSION = 1
N_TOKENS = 256
TIMES = 10.0  # as far apart as their own kernels, and so many times more, is still rounding
LEAST = 1e-6  # relative; below this float32 has nothing to say
FEWEST = 16  # tokens: fewer would not show windows and positions


@dataclass(frozen=True)
class TracePoint:
    """One tensor on the way through the model; distances are the largest, relative to the largest number there."""

    name: str
    ours: float  # we from transformers' eager attention
    # by rounding alone: transformers' sdpa from its eager attention, and where it has layers without either, we in float64
    theirs: float

    @property
    def agrees(self) -> bool:
        """Whether the distance is rounding."""
        return self.ours <= max(TIMES * self.theirs, LEAST)  # false for NaN


@dataclass(frozen=True)
class Verification(ShowsItself):
    """What was compared."""

    architecture: str  # transformers' class
    transformers: str  # its version
    n_tokens: int
    places: tuple[TracePoint, ...]
    same_next_tokens: float  # share of places where both find the same token likeliest

    @property
    def first_difference(self) -> TracePoint | None:
        """The first place where the two differ by more than rounding."""
        return next((place for place in self.places if not place.agrees), None)

    def as_json(self) -> dict[str, Any]:
        differs = self.first_difference
        answer = {"agrees": differs is None, "first_difference": differs and differs.name}
        return {"version": VERSION, **asdict(self), **answer}


def verify(path: str | Path, text: str | None = None, n_tokens: int = N_TOKENS) -> Verification:
    """Run the model of a directory or GGUF file on `n_tokens` of a text, here and in transformers, in float32 on the CPU.

    Without a text, or without a tokenizer, random tokens are read. A family from outside is compared with the PreTrainedModel
    that its file defines. Raises UsageError where transformers is not installed, has no class for the
    model, does not open it or tells no states of its layers, and for a text that is too short; CheckpointError as `load`
    does.
    """
    source = find(path)
    if source.family is None:
        raise UsageError(
            f"{path} is a directory of ours, which transformers cannot open; "
            "`anyformer convert` makes one that it can, where it has a class for the model"
        )
    try:
        import transformers
    except ImportError:
        raise UsageError(
            "verify compares with transformers, which is not installed; pip install transformers"
        ) from None
    at_least_one("n_tokens", n_tokens)
    ours, tokenizer = load(path, dtype=torch.float32)
    composite = composite_of(source.settings)
    spec = without_pooling(ours.spec)
    kind = class_of(source.family, source.family.to_config(spec)) if composite is None else composite.architecture
    theirs = getattr(transformers, kind, None) or _defined(kind, transformers.PreTrainedModel)
    if theirs is None:
        raise UsageError(
            f"transformers has no class {kind}; give one to compare with, a PreTrainedModel of that name in a file of "
            "your own, by --import"
        )
    has_sdpa = getattr(theirs, "_supports_sdpa", False)
    states = any(spec.nested(RecurrentSpec, LSHAttentionSpec))
    if states and not has_sdpa:
        raise UsageError(
            f"{kind} gives other states than those behind each layer, which verify compares; see docs/parity.md"
        )
    ids = _ids(ours, tokenizer, text, n_tokens, source.settings.get("pad_token_id"))
    heads = [head.name for head in spec.heads if not head.by_name]
    here = _here(ours, ids, heads)
    eager = _theirs(theirs, source, "eager", ids, heads)
    rounded = [(_theirs(theirs, source, "sdpa", ids, heads), eager)] if has_sdpa else []
    rounded += [(_here(ours.double(), ids, heads), here)] if states or not has_sdpa else []
    places = tuple(
        TracePoint(name, _distance(mine, first), max(_distance(one[i][1], other[i][1]) for one, other in rounded))
        for i, ((name, mine), (_, first)) in enumerate(zip(here, eager, strict=True))
    )
    same = (here[-1][1].argmax(-1) == eager[-1][1].argmax(-1)).float().mean()
    return Verification(kind, transformers.__version__, ids.shape[1], places, float(same))


Places = list[tuple[str, Tensor]]


def _ids(
    model: Transformer, tokenizer: Tokenizer | None, text: str | None, n_tokens: int, padding: int | None
) -> Tensor:
    n_tokens = min(n_tokens, model.spec.context or n_tokens)
    if text is None or tokenizer is None:
        n = model.spec.vocab_size
        drawn = torch.randint(0, n, (1, n_tokens), generator=torch.Generator().manual_seed(0))
        return drawn if padding is None else drawn.where(drawn != padding, (padding + 1) % n)  # some count no padding
    ids = tokenizer.encode(text)[:n_tokens]
    if len(ids) < FEWEST:
        raise UsageError(f"the text has {len(ids)} tokens; give one of at least {FEWEST}")
    return torch.tensor([ids])


def _here(model: Transformer, ids: Tensor, heads: list[str]) -> Places:
    model.kernel = "eager"
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, heads=heads, **_written(model.spec, ids))
    assert out.hidden_states is not None
    answers = [out.outputs[name] for name in heads]
    return list(_named(out.encoder_last_hidden_state, out.hidden_states, heads, answers))


def _written(spec: ModelSpec, ids: Tensor) -> dict[str, Tensor]:
    """What an encoder–decoder is told to have written: what it reads."""
    return {} if spec.encoder is None else {"decoder_input_ids": ids}


def _defined(name: str, above: type[Any]) -> type[Any] | None:
    """The class of a name among all that are derived from one: where a family is from outside, so is its class."""
    each = above.__subclasses__()
    return next((found for kind in each if (found := kind if kind.__name__ == name else _defined(name, kind))), None)


def _theirs(kind: Any, source: ModelSource, kernel: str, ids: Tensor, heads: list[str]) -> Places:
    path = source.weights
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": kernel, "local_files_only": True}
    if not path.is_dir():
        path, options["gguf_file"] = path.parent, path.name
    with redirect_stderr(StringIO()):  # bars of progress, which not all of its readers let one switch off
        try:
            model = kind.from_pretrained(path, **options)
        except Exception as error:  # whatever it is, it is transformers'
            raise UsageError(
                f"{source.weights} cannot be compared: transformers does not open it, "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
    switches = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():
        out = model.eval()(ids, output_hidden_states=True, **switches, **_written(source.spec, ids))
    answers = [value for name, value in out.items() if name.endswith("logits") or name == "pooler_output"]
    states = out.hidden_states if source.spec.encoder is None else out.decoder_hidden_states
    return list(_named(out.get("encoder_last_hidden_state"), states, heads, answers))


def _named(
    memory: Tensor | None, states: tuple[Tensor, ...], heads: list[str], answers: list[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    if memory is not None:
        yield "encoder", memory
    last = len(states) - 1
    for i, state in enumerate(states):
        yield "embedding" if i == 0 else f"layer {i - 1}" + (" and final norm" if i == last else ""), state
    for head, answer in zip(heads, answers, strict=True):
        yield "logits" if len(heads) == 1 else head, answer


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b.reshape(a.shape)).abs().max() / b.abs().max())
