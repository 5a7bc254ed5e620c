"""What papers count as FLOPs: each convention is a record with its source, and says which architectures it is not for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from anyformer.costs.formulas import Sizes, head_table, parameters_multiplied, uniform
from anyformer.errors import SpecError
from anyformer.layers import AttentionSpec, TokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec, PartSpec, Place, Recompute, Workload, inside, parameters

Flops = Mapping[str, int]  # of the whole batch, by part
BACKWARD = 2  # a backward pass has two products for each of the forward's: for the input's gradient and the weight's
CORE = ("scores", "values", "sinusoids", "distances")  # what selective recomputation makes again
CONSTANTS = ("sinusoids",)  # projected, but never changed: they need no gradient
CHOICE = ("indexer", "indexer scores", "hashes")  # which no gradient comes back through
OUTSIDE_LAYERS = ("logits", "linear")
PAIRS = ("scores", "values", "indexer scores")  # products of every query and key
AHEAD = "multi-token prediction"


@dataclass(frozen=True)
class Convention:
    """`forward` gives what one pass costs, of (spec, workload); a training step is `times` that, for each part.

    `ahead=True` gives what predicting further tokens adds to a pass of training, of models that a formula is for.
    """

    name: str
    says: str
    source: str
    forward: Callable[..., Flops]
    unit: Literal["FLOPs", "MACs"] = "FLOPs"
    times: Mapping[str, int] = field(default_factory=dict)  # of a part in training; by default 3
    by_formula: bool = False  # of sizes, not of what is executed: a policy of recomputation changes nothing

    def training(self, spec: ModelSpec, workload: Workload, recompute: Recompute = "none") -> Flops:
        """What forward and backward cost, and what is made again under the policy."""
        undoes = spec.stack.residual.undoes
        recompute = "full" if undoes else recompute
        kept = ("hashes",) if undoes else ()  # what a layer that is made again from its output has chosen stands
        flops = {
            part: flops * self._times(part, "none" if part in kept else recompute)
            for part, flops in self.forward(spec, workload).items()
        }
        # Whole layers are made again of stacks alone.
        policy: Recompute = "none" if recompute == "full" else recompute
        further = self.forward(spec, workload, ahead=True) if spec.ahead else {}
        ahead = sum(flops * self._times(part, policy) for part, flops in further.items())
        return {**flops, AHEAD: ahead} if ahead else flops

    def _times(self, part: str, recompute: Recompute) -> int:
        made = {"none": False, "selective": part in CORE, "full": part not in OUTSIDE_LAYERS}[recompute]
        again = made and not self.by_formula
        usual = 1 if part in CHOICE else BACKWARD if part in CONSTANTS else 1 + BACKWARD
        return self.times.get(part, usual) + again


def _products(spec: ModelSpec, workload: Workload, *, ahead: bool = False, exact: bool = False) -> Flops:
    """Every product of a pass; `exact`: only the pairs that the masks show."""
    counted = spec.cost_ahead if ahead else spec.cost
    return dict(counted(Place(), replace(workload, causal_exact=exact)))


def _half(spec: ModelSpec, workload: Workload, *, ahead: bool = False) -> Flops:
    every = alone = _products(spec, workload, ahead=ahead)
    if not ahead:
        if later_tokens_seen(spec.stack, after_prefix=True):
            return every
        (place,) = (place for name, _, place in inside(spec, Place()) if name == "stack")
        alone = spec.stack.cost(place, replace(workload, memory=0, causal_exact=False))  # to itself, not to an encoder
    return {part: flops - (alone[part] // 2 if part in PAIRS else 0) for part, flops in every.items()}


def _palm(spec: ModelSpec, workload: Workload, *, ahead: bool = False) -> Flops:
    # 2N and 4LHQT, a third of what the paper counts for training: its 2 · 2 · LHQ is Σ heads · (width of q·k + of values) · 2.
    _refuse_two_stacks("palm-mfu", spec)
    widths = _attention_widths(spec.but(ahead=()), Place())
    widths = _attention_widths(spec, Place()) - widths if ahead else widths
    return {
        "parameters": 2 * parameters_multiplied(spec, ahead=ahead) * workload.tokens,
        "scores and values": 2 * widths * workload.query * workload.tokens,
    }


def _attention_widths(part: PartSpec, place: Place) -> int:
    """The sum over all attentions of heads · (width of a query + width of a value)."""
    if isinstance(part, AttentionSpec):
        projection = part.parts(place)["projection"]
        assert isinstance(projection, tuple)
        n_heads, width, value_width = part.projection.sizes(projection[1])
        return n_heads * (width + value_width)
    return sum(_attention_widths(inner, there) for _, inner, there in inside(part, place))


def _2nd(spec: ModelSpec, workload: Workload, *, ahead: bool = False) -> Flops:
    _refuse_two_stacks("6nd", spec)
    looked_up = 0 if ahead else parameters(spec).embedding - head_table(spec)
    return {"parameters": 2 * (parameters_multiplied(spec, ahead=ahead) + looked_up) * workload.tokens}


def _refuse_two_stacks(name: str, spec: ModelSpec) -> None:
    if spec.encoder is not None:
        raise _unfit(name, "one stack of layers", "an encoder and a decoder")


def _megatron(spec: ModelSpec, workload: Workload) -> Flops:
    _uniform("megatron", spec)
    d, s, n = spec.stack.d_model, workload.query, spec.n_layers * workload.tokens
    return {
        "projections": 8 * d**2 * n,
        "scores": 2 * s * d * n,
        "values": 2 * s * d * n,
        "feed-forward": 16 * d**2 * n,
        "logits": 2 * d * spec.vocab_size * workload.tokens,
    }


def _opt_table(spec: ModelSpec, workload: Workload) -> Flops:
    _uniform("opt-table", spec)
    d, s, n = spec.stack.d_model, workload.query, spec.n_layers * workload.tokens
    padded = -(-spec.vocab_size // 1024) * 1024  # Megatron pads to a multiple of 128 on each of 8 devices: 51,200
    return {
        "MHA": (2 * d**2 + 8 * s * d) * n,  # as printed; 8·d² would be right
        "FFN": 16 * d**2 * n,
        "attention": 4 * s * d * n,
        "logits": 2 * d * padded * workload.tokens,
    }


def _chinchilla(spec: ModelSpec, workload: Workload) -> Flops:
    n_heads, head_dim, d_ff = _uniform("chinchilla", spec, any_width=True)
    d, s, n = spec.stack.d_model, workload.query, spec.n_layers * workload.tokens
    return {
        "projections": (6 + 2) * d * n_heads * head_dim * n,
        "scores": 2 * s * n_heads * head_dim * n,
        "softmax": 3 * n_heads * s * n,
        "values": 2 * s * n_heads * head_dim * n,
        "feed-forward": 4 * d * d_ff * n,
    }


def _narang(spec: ModelSpec, workload: Workload, *, ahead: bool = False) -> Flops:
    macs = {part: flops // 2 for part, flops in _products(spec, workload, ahead=ahead).items()}
    if ahead:
        return macs
    gathered, tokens = 0, {"encoder": workload.batch * workload.memory}
    for name, stack in spec.stacks.items():
        for term in stack.embedding.terms:
            if isinstance(term, TokensSpec):
                width = term.table.width or stack.embedding.width or stack.d_model
                gathered += tokens.get(name, workload.tokens) * term.table.rows * width
    return {**macs, "embeddings": gathered}


def _uniform(name: str, spec: ModelSpec, *, any_width: bool = False) -> Sizes:
    try:
        return uniform(spec, any_width=any_width)
    except SpecError as has:
        wants = "decoder layers of multi-head attention and a plain feed-forward"
        raise _unfit(name, wants if any_width else f"{wants} of 4 · d_model", has) from None


def _unfit(name: str, of: str, has: str | SpecError) -> SpecError:
    return SpecError(f"convention {name!r} is a formula for {of}, and this model has {has}; take exact-causal")


_LAYERS_AGAIN = {"projections": 4, "scores": 4, "values": 4, "feed-forward": 4, "MHA": 4, "FFN": 4, "attention": 4}
_EACH = (
    Convention(
        "exact-causal",
        "2 for a multiply-add of every product; attention counts the pairs of query and key that the masks show",
        "the products that are needed, counted",
        partial(_products, exact=True),
    ),
    Convention(
        "full-attention",
        "the same, but attention counts every pair, as most formulas and PyTorch's counter do",
        "torch.utils.flop_counter",
        _products,
    ),
    Convention(
        "causal-half",
        "the same, but half of every pair where tokens see none that are later: scores and values over N²/2",
        "Dao 2023, arXiv:2307.08691, section 4.1",
        _half,
    ),
    Convention(
        "6nd",
        "6 for each parameter and token, attention's pairs left out; N: all that one token uses, tables once among them",
        "Brown et al. 2020, arXiv:2005.14165, table D.1; Hoffmann et al. 2022, arXiv:2203.15556, appendix F",
        _2nd,
        by_formula=True,
    ),
    Convention(
        "palm-mfu",
        "2N + 4LHQT a token forward, three times that in training; N: what one token uses, look-ups left out",
        "Chowdhery et al. 2022, arXiv:2204.02311, appendix B",
        _palm,
        by_formula=True,
    ),
    Convention(
        "megatron",
        "96Bslh²(1 + s/6h + V/16lh) a step: layers four times forward (all is made again), logits three times",
        "Narayanan et al. 2021, arXiv:2104.04473, section 5.1 and appendix",
        _megatron,
        times=_LAYERS_AGAIN,
        by_formula=True,
    ),
    Convention(
        "chinchilla",
        "3·L·(8sd² + 4s²d + 3Hs² + 4sdf) a sequence in training, softmax in, embeddings and logits out, as table A4 needs",
        "Hoffmann et al. 2022, arXiv:2203.15556, appendix F",
        _chinchilla,
        by_formula=True,
    ),
    Convention(
        "narang-macs",
        "multiply-adds counted once, every pair, and look-ups as products with one-hot vectors",
        "Narang et al. 2021, arXiv:2102.11972, tables 1 and 2",
        _narang,
        unit="MACs",
    ),
    Convention(
        "opt-table",
        "as the CS336 table of OPT prints it; its MHA column is 2d² + 8sd where 8d² is right: see docs/cost.md",
        "Stanford CS336, lecture 1; sizes of Zhang et al. 2022, arXiv:2205.01068, table 1",
        _opt_table,
        times=_LAYERS_AGAIN,
        by_formula=True,
    ),
)
CONVENTIONS: Mapping[str, Convention] = {convention.name: convention for convention in _EACH}
