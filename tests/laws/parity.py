"""One model twice, ours and transformers', with the same weights, on the same tokens: how far apart they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.zaya.modeling_zaya import ZayaPreTrainedModel

from anyformer.families import FAMILIES, Family
from anyformer.families.hf.mapping import class_of, fitting, ours_of, theirs_of
from anyformer.hub import load
from anyformer.layers import (
    ALiBiSpec,
    AsideSpec,
    GatedDeltaNetSpec,
    GatedFeedForwardSpec,
    IndexerSpec,
    PerLayerEmbeddingSpec,
    RecurrentSpec,
    ShortConvolutionSpec,
    SinusoidSpec,
)
from anyformer.model import Transformer
from anyformer.spec import ModelSpec, Spec
from tests.laws.inputs import Inputs, forget, inputs_for
from tests.laws.models import waives
from tests.laws.tolerance import (
    FLOAT32,
    FLOAT32_READ,
    FLOAT64,
    FLOAT64_ALIBI,
    FLOAT64_ASIDE,
    FLOAT64_SPARSE,
    FLOAT64_TABLE,
    OWN_LOSS,
    close,
    distance,
    gradient_distance,
)
from tests.laws.weights import filled, telling
from tests.oracles import text_models as text_models  # classes of transformers by whose names laws ask for them

CLEAR = 1e-5  # between the last chosen and the first left out; float32 moves scores of some 1 by a tenth of it


BEGIN = ZayaPreTrainedModel._init_weights


def begun(self: Any, module: nn.Module) -> None:
    """Begin a module of ZAYA1's class, but leave corrections that were read: 5.24 puts -1 in place of the last."""
    read = getattr(module, "balancing_biases", None)
    kept = read.clone() if isinstance(read, Tensor) and getattr(read, "_is_hf_initialized", False) else None
    BEGIN(self, module)
    if read is not None and kept is not None:
        read.copy_(kept)


ZayaPreTrainedModel._init_weights = begun
# FlauBERT's class asks it, of norms before branches, for what each layer keeps, which it cannot be asked for in 5.24.
EncoderDecoderCache.__getitem__ = lambda self, layer: self.self_attention_cache  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class Pair:
    """The same model on both sides."""

    ours: Transformer
    theirs: Any
    family: Family
    spec: ModelSpec

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of their parameters by the names of ours; what no gradient moves is a buffer there."""
        # CamemBERT's class names a tied table by its head first.
        held = self.theirs.named_parameters(remove_duplicate=False)
        found = {name: _moved(parameter) for name, parameter in held if parameter.requires_grad}
        rows = [row for row in self.family.rows(self.spec) if found.keys() >= set(row.theirs)]
        return dict(ours_of(rows, lambda name: found[name]))

    def our_gradients(self) -> dict[str, Tensor]:
        """Return those of ours; not of what we train and they hold as a buffer (BART's bias of the logits)."""
        buffers = {name for name, _ in self.theirs.named_buffers()}
        held = {name for row in self.family.rows(self.spec) if set(row.theirs) & buffers for name in row.ours}
        return {n: _moved(p) for n, p in self.ours.named_parameters() if p.requires_grad and n not in held}


def beside(state: Tensor) -> Tensor:
    """Return a state [batch, token, width]; several streams [stream, batch, token, width] side by side (Gemma 3n)."""
    return state if state.dim() == 3 else state.permute(1, 2, 0, 3).flatten(2)


def behind(state: Tensor) -> Tensor:
    """Return a state [batch, token, width]; several streams [batch, token, stream, width] side by side (DeepSeek-V4, HY 4)."""
    return state if state.dim() == 3 else state.flatten(2)


def _moved(parameter: Tensor) -> Tensor:
    """Return the gradient: zero for a head that was not asked."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def pair(
    spec: ModelSpec,
    attention: str = "eager",
    least_row: float | None = None,
    seed: int = 0,
    longest_row: float | None = None,
) -> Pair:
    """Return our model and transformers' with telling weights."""
    family, settings = fitting(FAMILIES.values(), spec)
    weights = telling(spec, seed, least_row, longest_row)
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # a pad's row would get no gradient
    config = transformers.AutoConfig.for_model(family.hf_type, **(tokens | settings))
    kind: Any = getattr(transformers, class_of(family, settings))
    if attention == "sdpa" and not kind._supports_sdpa:
        attention = "eager"  # all that the class has
    if family.hf_type == "falcon" and config.alibi:
        attention = "sdpa"  # its eager adds ALiBi twice
    # Their grouped_mm, which is the default, has no float64.
    theirs = kind._from_config(config, attn_implementation=attention, experts_implementation="eager")
    theirs.to(torch.get_default_dtype())  # XLNet's class makes some tensors in float32 whatever it is told
    if theirs.can_generate():
        theirs.generation_config.forced_eos_token_id = None  # BART and Marian end what is cut off, whatever was likely
        theirs.generation_config.eos_token_id = None  # what ends n-grams ends no continuation
    head = theirs.get_output_embeddings()
    if head is not None and not spec.heads[0].tied and config.tie_word_embeddings:
        head.weight = nn.Parameter(head.weight.clone())  # T5's says so of all, and unties what files hold apart
    rows = family.rows(spec)
    named = dict(theirs_of(rows, weights.__getitem__))
    missing, surplus = theirs.load_state_dict(named, strict=False)
    held = dict(theirs.named_parameters(remove_duplicate=False))
    filled_too = {id(held[name]) for name in named if name in held}
    constant = {name for row in rows if not row.theirs for name in row.also}
    assert {name for name in missing if name not in held or id(held[name]) not in filled_too} <= constant, missing
    assert not surplus, surplus
    return Pair(filled(spec, weights), theirs.eval(), family, spec)


class Margin(TorchFunctionMode):
    """How near to a tie the nearest choice of the best k was: rounding decides what is nearer, otherwise on each side."""

    least = float("inf")

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.topk and args[1] < args[0].shape[-1]:
            best = args[0].topk(args[1] + 1, -1).values
            apart = (best[..., -2] - best[..., -1]).flatten()
            self.least = min([self.least, *apart[apart.isfinite()].tolist()])
        return func(*args, **(kwargs or {}))


def decided(spec: ModelSpec, attention: str, given: Inputs, first: int = 0) -> Pair:
    """Return a pair of which no indexer's choice is nearly a tie: the first such among seeds from `first` on.

    With the first three what a state of Zamba 2 is read for is nearly nothing: gradients 6e-4 apart, in float64 5e-13.
    """
    aside = any(isinstance(part, AsideSpec) for part in spec.nested())
    for seed in range(max(first, 3) if aside else first, first + 20):
        both = pair(spec, attention, seed=seed)
        if clear(both.ours, given):
            return both
    raise AssertionError(f"every choice is nearer to a tie than {CLEAR}")


def clear(model: Transformer, given: Inputs) -> bool:
    """Return whether no indexer's choice is nearly a tie."""
    if not any(model.spec.nested(IndexerSpec)):
        return True
    with torch.no_grad(), Margin() as margin:
        given.run(model)
    assert margin.least < float("inf"), "no choice was seen"
    return margin.least > CLEAR


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
        if func is torch.randn:  # what is drawn are float32's numbers, as within operators, which this does not reach
            return func(*args, **{**(kwargs or {}), "dtype": torch.float32}).double()
        return func(*map(wider, args), **{name: wider(value) for name, value in (kwargs or {}).items()})


@dataclass
class Differences:
    """Each the largest, relative to the largest number compared."""

    logits: float
    hidden: float
    gradients: float
    drawn: list[Tensor]  # what each head's logits were weighed by, to be one number

    @property
    def largest(self) -> float:
        return max(self.logits, self.hidden, self.gradients)


def differences(both: Pair, given: Inputs) -> Differences:
    """Run both sides forward and backward."""
    given = given.fit_for(both.theirs, both.spec)
    each = list(given.references(both.theirs))
    asked = given.comparable(both.spec)
    out = given.run(both.ours, output_hidden_states=True, heads=[head.name for head in asked])
    main = "hidden_states" if given.source is None else "decoder_hidden_states"
    side_by_side = behind if both.family.hf_type in ("deepseek_v4", "hy_v4", "glm5_next_text") else beside
    n_states = len(getattr(each[0][1], main))
    reference_states = [
        given.assembled(each, lambda part, i=i: side_by_side(getattr(part, main)[i])) for i in range(n_states)
    ]
    real, generator = given.real, torch.Generator().manual_seed(1)
    totals, logits, drawn = [torch.zeros(()), torch.zeros(())], 0.0, list[Tensor]()
    for head in asked:
        ours, theirs = out.outputs[head.name], given.answers(each, head)
        if head.pool is None:
            ours, theirs = ours[real], theirs[real]
        logits = max(logits, distance(ours, theirs))
        drawn.append(torch.randn(theirs.shape, generator=generator))
        totals = [total + (side * drawn[-1]).sum() for total, side in zip(totals, (ours, theirs), strict=True)]
    for model, total in zip((both.ours, both.theirs), totals, strict=True):
        model.zero_grad(set_to_none=True)
        total.backward()
    assert out.hidden_states is not None
    assert len(out.hidden_states) == len(reference_states) == both.spec.n_layers + 1
    ours = list(out.hidden_states)
    if both.family.hf_type == "gemma3n_text":  # whose class gives the last streams in place of what they end as
        ours, reference_states = ours[:-1], reference_states[:-1]
    if ours[-1].shape != reference_states[-1].shape:  # OPT-350M counts the projection before its head to the stack
        for step in both.ours.head().transform:
            ours[-1] = step(ours[-1])
    if both.family.hf_type in (
        "mamba",
        "falcon_mamba",
        "mamba2",
        "rwkv",
    ):  # which give the last layer's in place of the embedding's
        ours, reference_states = ours[1:], [*reference_states[:-2], reference_states[-1]]
    if both.family.hf_type == "minimax":  # which gives the stream before the norm that its next layer begins with
        norms = (layer.input_layernorm for layer in both.theirs.model.layers)
        reference_states = [*(norm(x) for norm, x in zip(norms, reference_states, strict=False)), reference_states[-1]]
    states = zip(ours, reference_states, strict=True)
    return Differences(
        logits,
        max(distance(a[real], b[real]) for a, b in states),
        gradient_distance(both.our_gradients(), both.gradients()),
        drawn,
    )


def lost(both: Pair, given: Inputs, drawn: Sequence[Tensor]) -> float:
    """Return how far gradients that their model just had in float32 lie from what they are in float64."""
    rounded = {name: gradient.double() for name, gradient in both.gradients().items()}
    given = given.fit_for(both.theirs, both.spec)
    heads = given.comparable(both.spec)
    with InDouble():
        each = list(given.references(both.theirs.double()))
        both.theirs.zero_grad(set_to_none=True)
        for head, weight in zip(heads, drawn, strict=True):
            answers = given.answers(each, head)
            ((answers if head.pool else answers[given.real]) * weight).sum().backward(retain_graph=True)
        exact = both.gradients()
    both.theirs.float()
    return gradient_distance(rounded, exact)


def tolerated(both: Pair, given: Inputs, found: Differences) -> float:
    """Return how far apart gradients may lie: what `single` says, or thrice what their own float32 loses, if that is more."""
    most = single(both.spec)
    return most if found.gradients < most else max(most, OWN_LOSS * lost(both, given, found.drawn))


def n_begun(spec: ModelSpec) -> int:
    """Return how many tokens a continuation begins with; FSMT's class masks nothing within them."""
    return 1 if fitting(FAMILIES.values(), spec)[0].hf_type == "fsmt" else 20


def beginning(given: Inputs, n: int) -> Inputs:
    """Return the first n tokens of each row, to be continued; a decoder beside an encoder begins with 0, unpadded."""
    ids, mask = given.input_ids[:, :n].clone(), given.real[:, :n].long()
    if given.source is not None:
        ids[:, 0], mask = 0, torch.ones_like(mask)
    return given.begun(ids, mask)


def greedy(model: Transformer, start: Inputs, n: int) -> Tensor:
    """Return the rows and the n likeliest next tokens of each, one by one, without a cache."""
    ids, mask = start.input_ids, start.real.long()
    for _ in range(n):
        with torch.no_grad():
            logits = start.begun(ids, mask).run(model, logits_to_keep=1).logits
        ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), -1)
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), -1)
    return ids


def generated(both: Pair, start: Inputs, n: int, **options: Any) -> Tensor:
    """Return the rows and the n next tokens that transformers' `generate` writes, by default likewise."""
    # MiniMax's class makes the mask of cached keys as long as its first layer's cache, which is a state and has none.
    unmasked = both.family.hf_type == "minimax" and not bool(start.real.all())
    kept = getattr(both.theirs.config, "use_cache", True)  # not where a model does not fit xLSTM's cache
    options = {
        "use_cache": not waives(both.spec, "cache") and not unmasked and kept,
        "do_sample": False,
        "num_beams": 1,  # FSMT's class says 5
        "max_new_tokens": n,
        "pad_token_id": 0,
        **options,
    }
    if both.family.hf_type == "xlm":  # whose class writes what masks at the end stand for
        both.theirs.prepare_inputs_for_generation = lambda input_ids, attention_mask=None, **_: {"input_ids": input_ids}
    rows = []
    for piece in start.fit_for(both.theirs, both.spec).pieces:
        ids = start.input_ids[piece.rows]
        if start.source is None or start.source_real is None:
            before, here = ids[:, : piece.tokens.start or 0], piece[:2]  # padding that the class must not see
            more = both.theirs.generate(start.input_ids[here], attention_mask=start.real[here].long(), **options)
            rows.append(torch.cat((before, more), 1))
            continue
        source, mask = (t[piece.rows, piece.source] for t in (start.source, start.source_real.long()))
        forget(both.theirs)
        begun = {"decoder_input_ids": ids, "decoder_start_token_id": int(ids[0, 0])}
        rows.append(both.theirs.generate(source, attention_mask=mask, **begun, **options))
    return torch.cat(rows)


def theirs_on(theirs: Any, given: Inputs, spec: ModelSpec) -> Tensor:
    """Return the logits of their model."""
    given = given.fit_for(theirs, spec)
    return given.answers(list(given.references(theirs)), spec.heads[0])


def single(spec: ModelSpec) -> float:
    """Return how far apart the two sides may be in float32."""
    return FLOAT32_READ if any(map(says_little, spec.nested())) else FLOAT32


def says_little(part: Spec) -> bool:
    """Return whether what a part writes may be nearly nothing, which a norm behind enlarges: of a state, of few features."""
    return (isinstance(part, RecurrentSpec) and not isinstance(part, ShortConvolutionSpec)) or of_few_features(part)


def of_few_features(part: Spec) -> bool:
    """Return whether a part writes what few features leave of a token."""
    return isinstance(part, PerLayerEmbeddingSpec) or (isinstance(part, GatedFeedForwardSpec) and bool(part.sparsity))


def even_seed(spec: ModelSpec) -> int:
    """Return the first seed whose gradients are more than their rounding: 1 where decays are bounded.

    With 0, keys of no length make a plain loop over tokens lie 5e-12 from transformers' chunks, and ours 2e-11; with 1, 2 and 3
    all lie within 1e-12.
    """
    return int(any(isinstance(part, GatedDeltaNetSpec) and part.bound is not None for part in spec.nested()))


def rounding(spec: ModelSpec) -> float:
    """Return how far both sides may lie apart in float64."""
    if any(isinstance(part, SinusoidSpec) and part.layout == "concatenated" for part in spec.nested()):
        return FLOAT64_TABLE  # Marian's; the oracle of the paper's interleaved ones computes them in float64
    if any(isinstance(part, GatedFeedForwardSpec) and part.sparsity for part in spec.nested()):
        return FLOAT64_SPARSE
    if any(isinstance(part, AsideSpec) for part in spec.nested()):
        return FLOAT64_ASIDE
    return FLOAT64_ALIBI if any(isinstance(part, ALiBiSpec) for part in spec.nested()) else FLOAT64


def in_double(spec: ModelSpec, given: Inputs, folder: Path) -> Differences:
    """Compare both sides in float64; fail where theirs, written to a folder and read by us, computes something else."""
    with InDouble():
        both = pair(spec)
        both.ours.double()
        both.theirs.double()
        found = differences(both, given)
        both.theirs.save_pretrained(folder)
        back, _ = load(folder)
        with torch.no_grad():
            close(given.run(back).logits, given.run(both.ours).logits, FLOAT64)
    return found


def moves(spec: ModelSpec, mutated: ModelSpec) -> float:
    """Return how far another model's logits are from this one's with the same weights, in tolerances of float64."""
    weights, given = telling(spec), inputs_for("plain", spec)
    with torch.no_grad(), InDouble():
        before, after = (given.run(filled(s, weights).double()).logits for s in (spec, mutated))
    return distance(after, before) / rounding(spec)
