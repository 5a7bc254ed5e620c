"""Nemotron-H and Nemotron 3 to and from transformers' NemotronHForCausalLM, whose files call the stack its backbone."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import v3_routing
from anyformer.families.hf.mamba import mixer, modules
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import OLDER, kinds_of
from anyformer.families.nemotron_h import ROUTER, nemotron_h
from anyformer.layers import AttentionSpec, FeedForwardSpec, GQASpec, MoESpec, RouterSpec, SSDSpec
from anyformer.spec import ModelSpec

WORDS = {"linear_attention": SSDSpec, "full_attention": AttentionSpec, "moe": MoESpec, "mlp": FeedForwardSpec}
LETTERS = dict(zip("M*E-", WORDS, strict=True))
OF_MIXERS = {
    "n_heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "state_dim": "ssm_state_size",
    "n_groups": "n_groups",
    "bias": "mamba_proj_bias",
    "size": "conv_kernel",
    "biased": "use_conv_bias",
    "least": "time_step_min",
}


def _kinds(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Each layer's kind, by a list of words, or in older files by a letter each."""
    words, letters = settings.strings("layers_block_type"), settings.take("hybrid_override_pattern", str, "")
    settings.ignore("num_hidden_layers")  # which follows from them
    found = [OLDER.get(word, word) for word in words or [LETTERS.get(letter, letter) for letter in letters]]
    found = found or ["linear_attention", "moe", "full_attention", "mlp"]
    if unknown := set(found) - set(WORDS):
        raise settings.refusal("layers_block_type", f"has {min(unknown)!r}; a layer is {', '.join(WORDS)}")
    blocks = dict(zip(WORDS, spec.stack.blocks, strict=True))
    return with_layers(spec, (blocks[word] for word in found))


def _width(name: str, default: int, of: str) -> table.Pair:
    """The width of feed-forwards that are layers, of experts, or of what all tokens see beside these."""

    def holds(spec: ModelSpec) -> list[FeedForwardSpec]:
        mixers = [b.mixer for block in spec.stack.blocks for s in block.sublayers for b in s.branches]
        if of == "layer":
            return [each for each in mixers if isinstance(each, FeedForwardSpec)]
        found = [getattr(each, of) for each in mixers if isinstance(each, MoESpec)]
        return [each for each in found if isinstance(each, FeedForwardSpec)]

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        d_ff = settings.positive(name, int, default)
        if of != "layer":
            mixture = one(spec, MoESpec)
            return changed(spec, MoESpec, **{of: getattr(mixture, of).but(d_ff=d_ff)})
        *others, last = spec.stack.blocks  # the template's
        return with_layers(spec, (*others, changed(last, FeedForwardSpec, d_ff=d_ff)))

    return table.Pair(read, lambda spec: {name: holds(spec)[0].d_ff} if holds(spec) else {})


def _modules(up: str, down: str) -> dict[str, Any]:
    """A layer's, of whatever kind; of experts these."""
    return {
        "0.norm_in": "norm",
        **modules("mixer"),
        **{f"{table.MIXER}.projection.{x}": f"mixer.{x}_proj" for x in "qkvo"},
        **{f"{table.MIXER}.{x}": f"mixer.{x}_proj" for x in ("up", "down")},
        f"{table.MIXER}.router": "mixer.gate",
        f"{table.MIXER}.latent_in": "mixer.fc1_latent_proj",
        f"{table.MIXER}.latent_out": "mixer.fc2_latent_proj",
        f"{table.MIXER}.experts.up.weight": up,
        f"{table.MIXER}.experts.down.weight": down,
        **{f"{table.MIXER}.shared_expert.{x}": f"mixer.shared_experts.{x}_proj" for x in ("up", "down")},
    }


PAIRS = (
    *table.STREAM,
    table.if_any(GQASpec, table.heads(n_kv_heads=8, head_dim=128)),
    table.rms_eps(1e-5, "layer_norm_epsilon"),
    table.context("max_position_embeddings", 4096),
    *(table.if_any(SSDSpec, pair) for pair in mixer(OF_MIXERS, 128, 8, "mamba_hidden_act")),
    table.if_any(RouterSpec, v3_routing(8, 2, 1.0, 1, 1)),
    table.if_any(MoESpec, table.at("moe_latent_size", int, MoESpec, "latent", default=None, nullable=True)),
    _width("moe_intermediate_size", 7688, "expert"),
    _width("moe_shared_expert_intermediate_size", 7688, "shared_expert"),
    _width("intermediate_size", 21_504, "layer"),
    table.tables(tied=False),
    table.Pair(_kinds, lambda spec: {"layers_block_type": kinds_of(spec, WORDS)}),
    table.only(
        mlp_hidden_act=(None, "relu2"),
        mlp_bias=(None, False),
        attention_bias=(None, False),
        use_bias=(None, False),
        n_shared_experts=(None, 1),
        sliding_window=None,
        num_nextn_predict_layers=(None, 0),
    ),
)
TEMPLATE = nemotron_h("M*E-", 32, 1, 1, 8, 8, router=ROUTER, shared=8)
IDLE = (
    "expand", "chunk_size", "time_step_limit", "time_step_max", "time_step_floor",
    "residual_in_fp32", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "rescale_prenorm_residual",
    "mtp_layers_block_type", "mtp_hybrid_override_pattern", "rope_theta", "partial_rotary_factor", "norm_eps", "time_step_rank",
)  # fmt: skip


def _named(stack: str, up: str, down: str) -> Any:
    return table.family(
        "nemotron_h",
        "NemotronHForCausalLM",
        TEMPLATE,
        PAIRS,
        _modules(up, down),
        stack=stack,
        tokens="embeddings",
        norm="norm_f",
        ignored=IDLE,
    )


FILED = _named("backbone", "mixer.experts.*.up_proj.weight", "mixer.experts.*.down_proj.weight").rows
NEMOTRON_H = _named("model", "mixer.experts.up_proj", "mixer.experts.down_proj")._replace(
    files=FILED, prefix="backbone."
)
