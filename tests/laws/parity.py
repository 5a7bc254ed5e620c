"""One model twice, ours and transformers', with the same weights, on the same tokens: how far apart they are."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import transformers
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anyformer.families import FAMILIES, Family
from anyformer.families.hf.mapping import fitting, ours_of, theirs_of
from anyformer.layers import ALiBiSpec
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.laws.tolerance import FLOAT64, FLOAT64_ALIBI, distance, gradient_distance
from tests.laws.weights import filled, telling

LENGTH = 40  # beyond the context (32) from which a shrunk llama3 scaling was stretched


@dataclass
class Inputs:
    """Arguments of a forward pass, alike on both sides, and which tokens are real.

    Of packed documents, theirs is given one after the other: not all of its classes keep them apart by position_ids.
    """

    input_ids: Tensor
    real: Tensor  # [batch, token]
    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]
    documents: tuple[slice, ...] = (slice(None),)


def inputs(kind: str, vocab_size: int, seed: int = 0) -> Inputs:
    """Return two rows of tokens: plain, padded on the right or left, or packed documents."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab_size, (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if kind == "plain":
        return Inputs(ids, mask.bool(), {}, {})
    if kind == "packed":
        positions = torch.cat((torch.arange(15), torch.arange(LENGTH - 15))).expand(2, -1)
        return Inputs(ids, mask.bool(), {"position_ids": positions}, {}, (slice(0, 15), slice(15, None)))
    padding = slice(LENGTH - 7, None) if kind == "right" else slice(0, 7)
    mask[1, padding] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    theirs = {"attention_mask": mask} | ({"position_ids": positions} if kind == "left" else {})
    return Inputs(ids, mask.bool(), {"attention_mask": mask}, theirs)


@dataclass
class Pair:
    """The same model on both sides."""

    ours: Transformer
    theirs: Any
    family: Family
    spec: ModelSpec

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of their parameters by the names of ours; what no gradient moves is a buffer there."""
        found = {name: parameter.grad for name, parameter in self.theirs.named_parameters()}
        rows = [row for row in self.family.rows(self.spec) if found.keys() >= set(row.theirs)]
        return dict(ours_of(rows, lambda name: found[name]))


def pair(
    spec: ModelSpec,
    attention: str = "eager",
    least_row: float | None = None,
    seed: int = 0,
    longest_row: float = 1.0,
) -> Pair:
    """Return our model and transformers' with telling weights."""
    family, settings = fitting(FAMILIES.values(), spec)
    weights = telling(spec, seed, least_row, longest_row)
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # a pad's row would get no gradient
    config = transformers.AutoConfig.for_model(family.hf_type, **settings, **tokens)
    kind: Any = transformers.AutoModelForCausalLM._model_mapping[type(config)]  # type: ignore[attr-defined]
    if attention == "sdpa" and not kind._supports_sdpa:
        attention = "eager"  # all that the class has
    if family.hf_type == "falcon" and config.alibi:
        attention = "sdpa"  # its eager adds ALiBi twice
    # Their grouped_mm, which is the default, has no float64.
    theirs = kind._from_config(config, attn_implementation=attention, experts_implementation="eager")
    named = dict(theirs_of(family.rows(spec), weights.__getitem__))
    missing, surplus = theirs.load_state_dict(named, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(missing) <= tied, missing
    assert not surplus, surplus
    return Pair(filled(spec, weights), theirs.eval(), family, spec)


class InDouble(TorchFunctionMode):
    """Where code asks for float32, as classes do for their norms, scores and frequencies, it is given float64."""

    def __enter__(self) -> Self:
        torch.set_default_dtype(torch.float64)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(torch.float32)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is Tensor.float:
            return args[0].double()
        return func(*map(wider, args), **{name: wider(value) for name, value in (kwargs or {}).items()})


@dataclass
class Differences:
    """Each the largest, relative to the largest number compared."""

    logits: float
    hidden: float
    gradients: float


def differences(both: Pair, given: Inputs) -> Differences:
    """Run both sides forward and backward."""
    out = both.ours(given.input_ids, output_hidden_states=True, **given.ours)
    known = inspect.signature(both.theirs.forward).parameters  # BLOOM's and others' go by the mask alone
    theirs = {name: value for name, value in given.theirs.items() if name in known}
    each = [
        both.theirs(given.input_ids[:, document], output_hidden_states=True, use_cache=False, **theirs)
        for document in given.documents
    ]
    reference_logits = torch.cat([part.logits for part in each], 1)
    reference_states = [torch.cat(states, 1) for states in zip(*(part.hidden_states for part in each), strict=True)]
    real, generator = given.real, torch.Generator().manual_seed(1)
    weight = torch.randn(reference_logits[real].shape, generator=generator)
    for model, logits in ((both.ours, out.logits), (both.theirs, reference_logits)):
        model.zero_grad(set_to_none=True)
        (logits[real] * weight).sum().backward()
    assert len(out.hidden_states) == len(reference_states) == both.spec.n_layers + 1
    ours = list(out.hidden_states)
    if ours[-1].shape != reference_states[-1].shape:  # OPT-350M counts the projection before its head to the stack
        for step in both.ours.head().transform:
            ours[-1] = step(ours[-1])
    states = zip(ours, reference_states, strict=True)
    return Differences(
        distance(out.logits[real], reference_logits[real]),
        max(distance(a[real], b[real]) for a, b in states),
        gradient_distance({n: p.grad for n, p in both.ours.named_parameters() if p.requires_grad}, both.gradients()),
    )


def greedy(model: Transformer, ids: Tensor, mask: Tensor, n: int) -> Tensor:
    """Return the n likeliest next tokens of each row, one by one, without a cache."""
    for _ in range(n):
        with torch.no_grad():
            logits = model(ids, mask, logits_to_keep=1).logits
        ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), -1)
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), -1)
    return ids


def rounding(spec: ModelSpec) -> float:
    """Return how far both sides may lie apart in float64."""
    return FLOAT64_ALIBI if any(isinstance(part, ALiBiSpec) for part in spec.nested()) else FLOAT64


def moves(spec: ModelSpec, mutated: ModelSpec) -> float:
    """Return how far another model's logits are from this one's with the same weights, in tolerances of float64."""
    weights, given = telling(spec), inputs("plain", spec.vocab_size)
    with torch.no_grad(), InDouble():
        before, after = (filled(s, weights).double()(given.input_ids).logits for s in (spec, mutated))
    return distance(after, before) / rounding(spec)
