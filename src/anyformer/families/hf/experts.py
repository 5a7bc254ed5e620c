"""Mixtures of experts in transformers' classes, and Mixtral, Qwen's mixtures and Phi-3.5-MoE to and from theirs.

Tensors are fused in memory; files hold a tensor for each expert. Some layers of Qwen2MoeForCausalLM may be dense; the LongRoPE
of PhimoeForCausalLM keeps the short factors at every length.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited, with_layers
from anyformer.families.hf import table, windows
from anyformer.families.hf.layout import Theirs, gated
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, SWIGLU, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import REQUIRED, Settings
from anyformer.families.hf.table import Pair
from anyformer.families.mistral import mixtral
from anyformer.families.phi_moe import phi_moe
from anyformer.families.qwen2 import qwen_moe
from anyformer.layers import GatedFeedForwardSpec, GQASpec, MoESpec, RotarySpec, RouterSpec
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec, Width

EXPERTS = f"{table.FEED}.experts"
GATE_AND_UP = (f"{EXPERTS}.gate.weight", f"{EXPERTS}.up.weight")
ALONE = {GATE_AND_UP: "mlp.experts.gate_up_proj", f"{EXPERTS}.down.weight": "mlp.experts.down_proj"}
HELD = {f"{table.FEED}.router": "mlp.gate", **ALONE}


def routed(weight: str, correction: str | Theirs) -> dict[str, str | Theirs]:
    """The tensors of a router whose correction is not beside its weight."""
    return {f"{table.FEED}.router.weight": weight, f"{table.FEED}.router.correction": correction}


def filed(
    gate: str | None = "mlp.gate",
    each: str = "mlp.experts",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> dict[str, str]:
    """The modules of a router, None for none, and of gated experts, `each` alone, as files have them."""
    parts = {
        f"{EXPERTS}.{ours}": f"{each}.*.{theirs}" for ours, theirs in zip(("gate", "up", "down"), names, strict=True)
    }
    return parts if gate is None else {f"{table.FEED}.router": gate, **parts}


BY_EXPERT = HELD, filed()  # in memory, and in files
PLACES_OF_MIXTRAL = "block_sparse_moe.experts", ("w1", "w3", "w2")
OF_MIXTRAL = filed("block_sparse_moe.gate", *PLACES_OF_MIXTRAL)


def expert_width(name: str, field: str, default: int) -> Pair:
    """The setting of the d_ff of a mixture's `field`, expert or shared_expert."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        mixture = one(spec, MoESpec)
        width = settings.take(name, int, default)
        return changed(spec, MoESpec, **{field: getattr(mixture, field).but(d_ff=width)})

    def write(spec: ModelSpec) -> dict[str, int]:
        expert = getattr(one(spec, MoESpec), field)
        return {name: one(expert, GatedFeedForwardSpec).d_ff} if expert else {}

    return Pair(read, write)


TEMPLATE = mixtral(1, 8, 1, 8, 1, head_dim=8)


def mixtral_routing(default: int, chosen: int) -> Pair:
    """How many experts there are, by Mixtral's name, and how many see a token."""
    sizes = {"num_local_experts": ("n_experts", int, default), "num_experts_per_tok": ("top_k", int, chosen)}
    return table.together(RouterSpec, sizes)


MIXTRAL = table.family(
    "mixtral",
    "MixtralForCausalLM",
    TEMPLATE,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        table.rms_eps(1e-5),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072),
        windows.window(None),
        mixtral_routing(8, 2),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION},
    apart=(HELD, OF_MIXTRAL),
)

TEMPLATE_OF_QWEN = qwen_moe(1, 8, 1, 8, 1, n_experts=64, top_k=4, d_shared=8, context=32_768)
SHARED = {
    **gated(f"{table.FEED}.shared_expert", "mlp.shared_expert"),
    f"{table.FEED}.shared_gate": "mlp.shared_expert_gate",
}


def sparse(spec: BlockSpec) -> bool:
    """Whether a layer is a mixture."""
    return any(isinstance(mixer, MoESpec) for mixer in spec.mixers)


def routing(default: int, chosen: int) -> Pair:
    """How many experts there are, by the name that files have or the one that transformers 5 writes, and how many see a token."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = settings.take("num_experts", int, settings.optional("num_local_experts", int) or default)
        return changed(spec, RouterSpec, n_experts=n, top_k=settings.take("num_experts_per_tok", int, chosen))

    def write(spec: ModelSpec) -> dict[str, int]:
        router = one(spec, RouterSpec)
        return {"num_experts": router.n_experts, "num_experts_per_tok": router.top_k}

    return Pair(read, write)


def qwen_routing(default: int, chosen: int, *, sum_is_one: bool) -> tuple[Pair, Pair]:
    """The same, and whether the weights of those are made to sum to 1."""
    return routing(default, chosen), table.at("norm_topk_prob", bool, RouterSpec, "renormalise", default=sum_is_one)


def _read_dense(settings: Settings, spec: ModelSpec, default: int, usual: tuple[int, ...]) -> ModelSpec:
    """Place dense layers between the sparse ones of which the template has one."""
    n_layers = settings.take("num_hidden_layers", int)
    step, width = settings.positive("decoder_sparse_step", int, 1), settings.optional("intermediate_size", int)
    dense_ones = settings.layers("mlp_only_layers", n_layers, (i for i in usual if i < n_layers))
    mixed = spec.stack.blocks[0]
    dense = as_dense(mixed, width or default)
    kinds = ((i + 1) % step == 0 and i not in dense_ones for i in range(n_layers))
    return with_layers(spec, (mixed if kind else dense for kind in kinds))


def _write_dense(spec: ModelSpec) -> dict[str, Any]:
    blocks = spec.stack.blocks
    dense = [i for i, layer in enumerate(blocks) if not sparse(layer)]
    found: dict[str, Any] = {"num_hidden_layers": len(blocks), "decoder_sparse_step": 1, "mlp_only_layers": dense}
    if dense:
        mixer = blocks[dense[0]].sublayers[-1].branches[0].mixer
        found["intermediate_size"] = mixer.d_ff if isinstance(mixer, GatedFeedForwardSpec) else None
    return found


DENSE, SPARSE = "dense", "sparse"


def dense_by_type(
    width: int | None, first: int, setting: str | None = None, *, of_dense: str = "intermediate_size"
) -> Pair:
    """Which layers are dense, by a list of their types; where it is absent the `first` few are, or as many as a `setting` says.

    It follows those that lay out the layers, all of them mixtures; `width` is that of a dense one where the setting `of_dense`
    says nothing, None the width of an expert.
    """

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = first if setting is None else settings.take(setting, int, first)
        by_number = (DENSE if i < n else SPARSE for i in range(spec.n_layers))
        types = settings.words("mlp_layer_types", spec.n_layers, (DENSE, SPARSE), by_number)
        usual = width or one(one(spec, MoESpec).expert, GatedFeedForwardSpec).d_ff
        return with_dense(spec, types, settings.positive(of_dense, int, usual))

    def write(spec: ModelSpec) -> dict[str, Any]:
        return {
            "mlp_layer_types": [SPARSE if sparse(block) else DENSE for block in spec.stack.blocks],
            **dense_width(spec, of_dense),
        }

    return Pair(read, write)


def dense_first(first: int, name: str = "first_k_dense_replace", width: Any = REQUIRED) -> Pair:
    """How many layers, of this width, are before the mixtures, `first` where nothing is said; otherwise as `dense_by_type`."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n = settings.take(name, int, first)
        settings.require("moe_layer_freq", 1)
        types = tuple(DENSE if i < n else SPARSE for i in range(spec.n_layers))
        return with_dense(spec, types, settings.positive("intermediate_size", int, width))

    def write(spec: ModelSpec) -> dict[str, Any]:
        kinds = [*map(sparse, spec.stack.blocks), True]
        return {name: kinds.index(True), **dense_width(spec)}

    return Pair(read, write)


def with_dense(spec: ModelSpec, types: tuple[str, ...], d_ff: int) -> ModelSpec:
    """The model with a feed-forward of this width for the mixture of each dense layer."""
    pairs = zip(spec.stack.blocks, types, strict=True)
    blocks = tuple(as_dense(block, d_ff) if kind == DENSE else block for block, kind in pairs)
    return with_layers(spec, blocks)


def dense_width(spec: ModelSpec, name: str = "intermediate_size") -> dict[str, int]:
    """The setting of the width of dense layers, where there are any."""
    dense = next((block for block in spec.stack.blocks if not sparse(block)), None)
    return {} if dense is None else {name: one(dense, GatedFeedForwardSpec).d_ff}


def as_dense(layer: BlockSpec, d_ff: int) -> BlockSpec:
    """The layer with a feed-forward of this width for its mixture."""
    return edited(layer, MoESpec, lambda mixture: changed(mixture.expert, GatedFeedForwardSpec, d_ff=Width(d_ff)))


def _unwindowed(settings: Settings, spec: ModelSpec) -> ModelSpec:
    settings.require("use_sliding_window", False)
    settings.ignore("sliding_window", "max_window_layers")
    if set(settings.strings("layer_types") or ()) - {windows.FULL}:
        raise settings.refusal("layer_types", f"has windows, which are not computed here; only {windows.FULL} is")
    return spec


def dense_ones(width: int, usual: tuple[int, ...] = ()) -> Pair:
    """The depth, and which layers are dense, by their numbers; the arguments are what a class takes where nothing is said."""
    return Pair(lambda settings, spec: _read_dense(settings, spec, width, usual), _write_dense)


UNWINDOWED = Pair(_unwindowed)
QWEN_MOE = table.family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    TEMPLATE_OF_QWEN,
    (
        *table.STREAM,
        table.heads(n_kv_heads=16),
        table.at("qkv_bias", bool, GQASpec, *table.QKV_BIASES, default=True),
        SWIGLU,
        EPS,
        table.positions(context=32_768),
        UNWINDOWED,
        *qwen_routing(60, 4, sum_is_one=False),
        expert_width("moe_intermediate_size", "expert", 1408),
        expert_width("shared_expert_intermediate_size", "shared_expert", 5632),
        table.tables(tied=False),
        dense_ones(5632),
    ),
    {**NORMS, **ATTENTION, **GATED, **SHARED},
    apart=BY_EXPERT,
)

TEMPLATE_OF_PHI = phi_moe(n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, d_ff=8)

PHI_MOE = table.family(
    "phimoe",
    "PhimoeForCausalLM",
    TEMPLATE_OF_PHI,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        table.BIASES,
        table.eps(1e-5, "rms_norm_eps"),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072, magnitudes=True),
        windows.window(None),
        mixtral_routing(16, 2),
        table.only(num_experts_per_tok=2),  # which the class takes whatever is said
        table.at("router_jitter_noise", float, RouterSpec, "tolerance", default=0.01),
        table.at("lm_head_bias", bool, HeadSpec, "bias", default=False),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION},
    apart=({**HELD, f"{table.FEED}.router": "mlp.router"}, OF_MIXTRAL),
    ignored=("input_jitter_noise",),
)
