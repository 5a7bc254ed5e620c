"""T5, mT5, UMT5, LongT5 and Switch to and from transformers' classes of these names …ForConditionalGeneration.

The classes say of every model that its head is tied; whether T5's is, they see by what files hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from anyformer.errors import SpecError
from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.layout import Laid, of_layers, within
from anyformer.families.hf.mapping import TensorFiles, dropped, one, width_of_head
from anyformer.families.hf.settings import ACTIVATIONS, Settings, spelling
from anyformer.families.hf.stacks import encoder_decoder_family, in_encoder, two_stacks, with_encoder_alone
from anyformer.families.long_t5 import blocks_of
from anyformer.families.switch import CAPACITY, sparse
from anyformer.families.t5 import dense, t5
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    FeedForwardSpec,
    FixedCapacity,
    GatedFeedForwardSpec,
    GQASpec,
    MoESpec,
    Normal,
    RelativeBucketsSpec,
    RouterSpec,
    SymmetricWindow,
)
from anyformer.spec import HeadSpec, MixerSpec, ModelSpec, StackSpec, Width, Window

HEAD = "lm_head.weight"
TABLES = ("encoder.embed_tokens", "decoder.embed_tokens")
GATED = "gated-"


def _feed(settings: Settings, usual: str) -> MixerSpec:
    """The feed-forward that "relu", "gated-gelu" and the like stand for; `usual` is the class's. Raises CheckpointError."""
    word = settings.take("feed_forward_proj", str, usual)
    name = {"gated-gelu": "gelu_new"}.get(word, word.removeprefix(GATED))
    settings.require("dense_act_fn", name)
    if name not in ACTIVATIONS:
        raise settings.refusal("feed_forward_proj", f"is none of, or gated- before one of, {', '.join(ACTIVATIONS)}")
    d_ff, activation = Width(settings.positive("d_ff", int)), ACTIVATIONS[name]
    if word.startswith(GATED):
        return GatedFeedForwardSpec(d_ff=d_ff, activation=activation)
    return dense(d_ff).but(activation=activation)


def _depths(settings: Settings, absent: int | None = None) -> tuple[int, int]:
    """The layers of encoder and decoder; null is as many as the encoder's, and so is nothing, or `absent`."""
    n_layers = settings.take("num_layers", int)
    return n_layers, settings.nullable("num_decoder_layers", int, absent) or n_layers


def _written_depths(spec: ModelSpec) -> dict[str, Any]:
    (*_, encoder), (*_, decoder) = two_stacks(spec)
    return {"num_layers": len(encoder.blocks), "num_decoder_layers": len(decoder.blocks)}


def _tied(spec: ModelSpec) -> dict[str, Any]:
    return {"tie_word_embeddings": bool(one(spec, HeadSpec).tied)}


SCALES = "scale_decoder_outputs"


def _layers(*, scaled: bool, one_table: bool = True, usual: str = "relu") -> table.Pair:
    """The feed-forward of every layer, the depths and the head, which a class scales, or not, where it is tied."""

    def read(settings: Settings, _: ModelSpec) -> ModelSpec:
        feed, (n_encoder, n_decoder) = _feed(settings, usual), _depths(settings)
        tied = settings.take("tie_word_embeddings", bool, True)
        scales = scaled and settings.take(SCALES, bool, tied)
        layers = (feed,) * n_encoder, (feed,) * n_decoder
        return _template(*layers, tied=tied, scaled=scales, one_table=one_table)

    def write(spec: ModelSpec) -> dict[str, Any]:
        feeds = spec.stack.nested(FeedForwardSpec, GatedFeedForwardSpec)
        feed = next(feeds, None)
        if feed is None:
            raise SpecError("the model has no feed-forward")
        name = spelling(feed.activation) or "relu"
        if isinstance(feed, GatedFeedForwardSpec):
            name = GATED + ("gelu" if name == "gelu_new" else name)
        scale = {SCALES: one(spec, HeadSpec).scale is not None} if scaled else {}
        return {**_written_depths(spec), "d_ff": feed.d_ff, "feed_forward_proj": name, **_tied(spec), **scale}

    return table.Pair(read, write)


def _template(
    encoder: tuple[MixerSpec, ...], decoder: tuple[MixerSpec, ...], *, tied: bool, scaled: bool, one_table: bool = True
) -> ModelSpec:
    """The model of which `_sizes` says the rest."""
    of_head = {"tied": tied, "scaled": scaled}
    return t5(d_model=8, n_heads=1, encoder=encoder, decoder=decoder, one_table=one_table, **of_head)


def _read_rest(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The width of a head, which the start of queries follows, and the context."""
    head_dim = settings.positive("d_kv", int, 64)
    start = spec.init
    if isinstance(start, ByRole) and isinstance(start.query, Normal):
        spec = spec.but(init=start.but(query=start.query.but(scale=head_dim**-0.5)))
    return changed(spec, GQASpec, head_dim=head_dim).but(context=settings.optional("n_positions", int))


def _write_rest(spec: ModelSpec) -> dict[str, Any]:
    start = spec.init.table if isinstance(spec.init, ByRole) else None
    return {
        "d_kv": width_of_head(spec),
        "initializer_factor": start.scale if isinstance(start, Normal) else 1.0,
        **({} if spec.context is None else {"n_positions": spec.context}),
    }


def _sizes(vocab_size: int) -> tuple[table.Pair, ...]:
    """What the classes say alike."""
    return (
        table.at("vocab_size", int, table.TableSpec, "rows", default=vocab_size),
        table.at("d_model", int, StackSpec, "d_model"),
        table.at("num_heads", int, GQASpec, "n_heads"),
        table.at("relative_attention_num_buckets", int, RelativeBucketsSpec, "n_buckets", default=32),
        table.at("relative_attention_max_distance", int, RelativeBucketsSpec, "max_distance", default=128),
        table.rms_eps(1e-6, "layer_norm_epsilon"),
        table.Pair(_read_rest, _write_rest),
        table.fixed(dropout_rate=0.0, is_encoder_decoder=True),
    )


def _attention(sublayer: int, kind: str) -> dict[str, str]:
    projection = f"{sublayer}.branches.0.mixer.projection"
    buckets = {f"{sublayer}.branches.0.mixer.scores.0": f"layer.{sublayer}.{kind}.relative_attention_bias"}
    return {**{f"{projection}.{x}": f"layer.{sublayer}.{kind}.{x}" for x in "qkvo"}, **buckets}


def _rest(sublayers: int, feed: Mapping[str, str]) -> dict[str, str]:
    """The norms of a layer, and the feed-forward that is its last sublayer."""
    last = sublayers - 1
    names = {f"{last}.branches.0.mixer.{ours}": f"layer.{last}.{theirs}" for ours, theirs in feed.items()}
    return {**names, **{f"{i}.norm_in": f"layer.{i}.layer_norm" for i in range(sublayers)}}


def _links(spec: ModelSpec, feed: Mapping[str, str], itself: str = "SelfAttention") -> Laid:
    found: Laid = {}
    names = itself, "SelfAttention"  # what attention to a stack's own tokens is called
    more = _rest(2, feed), _attention(1, "EncDecAttention") | _rest(3, feed)
    for (ours, side, stack), name, rest in zip(two_stacks(spec), names, more, strict=True):
        attention = one(stack, AttentionSpec)
        blocks, name = attention.transient, "TransientGlobalSelfAttention" if attention.transient else name
        modules = _attention(0, name) | rest
        buckets = next((score.shared for score in attention.scores), None)
        bias = f"{side}.block.0.layer.0.{name}.relative_attention_bias"
        if blocks is not None:
            modules[f"{table.MIXER}.transient.norm"] = f"layer.0.{name}.global_input_layer_norm"
            of_blocks = bias.replace("relative_attention_bias", "global_relative_attention_bias")
            found |= within({f"shared.{blocks.scores and blocks.scores.shared}": of_blocks})
        found |= within({f"{ours}.norm": f"{side}.final_layer_norm", f"shared.{buckets}": bias})
        found |= of_layers(stack, f"{side}.block", modules, ours)
    return found


def _links_of_t5(spec: ModelSpec, itself: str = "SelfAttention") -> Laid:
    gated = any(spec.stack.nested(GatedFeedForwardSpec))
    names = {"gate": "wi_0", "up": "wi_1" if gated else "wi", "down": "wo"}
    return _links(spec, {ours: f"DenseReluDense.{theirs}" for ours, theirs in names.items()}, itself)


# Of no use, in old files.
OLD = dropped("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")


def untied(spec: ModelSpec, files: TensorFiles) -> ModelSpec:
    """The model with a table of the head's own where files hold one beside the tokens', whatever was said."""
    tokens = next((name for each in ("shared", *TABLES) if (name := f"{each}.weight") in files), None)
    if tokens is None or HEAD not in files or torch.equal(files.read(tokens), files.read(HEAD)):
        return spec
    return spec.but(heads=tuple(head.but(table=head.table and head.table.but(shared=None)) for head in spec.heads))


KIND, TRANSIENT = "encoder_attention_type", "transient-global"


def _read_window(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The window of LongT5's encoder, and the blocks whose sums are keys beside it."""
    radius, every = Window(settings.take("local_radius", int, 127)), settings.positive("global_block_size", int, 16)
    spec = changed(spec, AttentionSpec, mask=SymmetricWindow(radius=radius))
    if settings.word(KIND, ("local", TRANSIENT), "local") == "local":
        return spec
    if every & (every - 1):
        raise settings.refusal("global_block_size", "is no power of two: its class adds up shares of it, which round")
    return changed(spec, AttentionSpec, transient=blocks_of(every))


def _write_window(spec: ModelSpec) -> dict[str, Any]:
    radius = {"local_radius": one(spec, SymmetricWindow).radius}
    transient = one(spec, AttentionSpec).transient
    if transient is None:
        return {KIND: "local", **radius}
    if transient.every & (transient.every - 1):
        raise SpecError("its class has blocks of a power of two, to count them without rounding")
    return {KIND: TRANSIENT, "global_block_size": transient.every, **radius}


WINDOW = in_encoder(table.Pair(_read_window, _write_window))
TEMPLATE = _template((dense(8),), (dense(8),), tied=True, scaled=True)
# How weights start, and what repeats feed_forward_proj.
IGNORED = ("initializer_factor", "is_gated_act")
T5, MT5, UMT5, LONG_T5 = (
    with_encoder_alone(
        encoder_decoder_family(
            hf_type,
            f"{name}ForConditionalGeneration",
            TEMPLATE,
            (*layers, *_sizes(vocab_size)),
            partial(_links_of_t5, itself=attention),
            prefix="",
            tables=TABLES,
            further=lambda _: [OLD],
            of_files=untied,
            ignored=IGNORED,
        ),
        f"{name}EncoderModel",
    )
    for hf_type, name, layers, vocab_size, attention in (
        ("t5", "T5", (_layers(scaled=True),), 32_128, "SelfAttention"),
        ("mt5", "MT5", (_layers(scaled=False, usual="gated-gelu"),), 250_112, "SelfAttention"),
        ("umt5", "UMT5", (_layers(scaled=True, one_table=False, usual="gated-gelu"),), 250_112, "SelfAttention"),
        ("longt5", "LongT5", (_layers(scaled=True), WINDOW), 32_128, "LocalSelfAttention"),
    )
)


def which(n_layers: int, n_sparse: int) -> tuple[bool, ...]:
    """Which layers are sparse: those whose number leaves 1 when divided by the step; all where the step is 1."""
    step = n_layers // n_sparse if n_sparse > 0 else n_layers
    return tuple(step == 1 or (step > 0 and i % step == 1) for i in range(n_layers))


def _n_sparse(stack: StackSpec) -> int:
    """The number that makes the layers sparse that are; any where none does."""
    wanted = tuple(any(block.nested(MoESpec)) for block in stack.blocks)
    return next((n for n in range(len(wanted) + 1) if which(len(wanted), n) == wanted), sum(wanted))


def _read_mixtures(settings: Settings, _: ModelSpec) -> ModelSpec:
    """Which layers are sparse."""

    def stack(name: str, n_layers: int) -> tuple[MixerSpec, ...]:
        n_sparse = settings.take(f"num_sparse_{name}_layers", int, 3)
        return tuple(sparse(dense(8), 1, CAPACITY) if each else dense(8) for each in which(n_layers, n_sparse))

    n_encoder, n_decoder = _depths(settings, 12)
    tied = settings.take("tie_word_embeddings", bool, True)
    return _template(stack("encoder", n_encoder), stack("decoder", n_decoder), tied=tied, scaled=tied)


def _write_mixtures(spec: ModelSpec) -> dict[str, Any]:
    one(spec, MoESpec)
    n_sparse = {f"num_sparse_{side}_layers": _n_sparse(stack) for _, side, stack in two_stacks(spec)}
    return {**_written_depths(spec), **n_sparse, **_tied(spec)}


FEED = {
    "up": "mlp.wi",
    "down": "mlp.wo",
    "router": "mlp.router.classifier",
    "experts.up": "mlp.experts.expert_*.wi",
    "experts.down": "mlp.experts.expert_*.wo",
}
_SWITCH = encoder_decoder_family(
    "switch_transformers",
    "SwitchTransformersForConditionalGeneration",
    TEMPLATE,
    (
        table.Pair(_read_mixtures, _write_mixtures),
        table.at("d_ff", int, FeedForwardSpec, "d_ff", default=2048),
        table.activation("dense_act_fn", "relu", FeedForwardSpec),
        table.at("num_experts", int, RouterSpec, "n_experts", default=8),
        table.at("expert_capacity", int, FixedCapacity, "tokens", default=CAPACITY),
        table.at("router_bias", bool, RouterSpec, "bias", default=False),
        table.fixed(router_jitter_noise=0.0),
        *_sizes(32_128),
        table.only(router_dtype="float32", router_ignore_padding_tokens=False, add_cross_attention=False),
    ),
    lambda spec: _links(spec, FEED),
    prefix="",
    tables=TABLES,
    further=lambda _: [OLD],
    ignored=(
        *IGNORED,
        # The rate of a loss, which belongs to a recipe; what follows from the numbers of sparse layers.
        *("router_z_loss_coef", "add_router_probs", "encoder_sparse_step", "decoder_sparse_step"),
    ),
)
SWITCH = with_encoder_alone(_SWITCH, "SwitchTransformersEncoderModel")
