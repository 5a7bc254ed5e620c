"""BART, PLBART, Marian, LED and those that norm before their branches to and from transformers' BartForConditionalGeneration,
MarianMTModel, LEDForConditionalGeneration, MBartForConditionalGeneration and the like.

Whether the bias of the logits is anything but zeros only files say: their classes hold it as a buffer, never trained there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from anyformer.families.bart import bart
from anyformer.families.hf import table
from anyformer.families.hf.bigbird import ATTENTION as BLOCKS
from anyformer.families.hf.layout import Laid, of_layers, within
from anyformer.families.hf.longformer import WINDOWS
from anyformer.families.hf.mapping import Family, TensorFiles, TensorRow, dropped, one, reshaped, waves
from anyformer.families.hf.scales import scaled_tokens
from anyformer.families.hf.stacks import encoder_decoder_family, encoder_of, in_decoder, in_encoder, two_stacks
from anyformer.families.longformer import led
from anyformer.families.marian import marian
from anyformer.families.mbart import bigbird_pegasus, blenderbot, m2m_100, mbart, pegasus
from anyformer.families.transformer import ROOT
from anyformer.layers import FeedForwardSpec, GQASpec, LearnedPositionsSpec, LocalAndGlobalSpec, SinusoidSpec
from anyformer.spec import HeadSpec, ModelSpec, StackSpec

BIAS = "final_logits_bias"
POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
TEMPLATE = {"d_model": 8, "layers": (1, 1), "n_heads": (1, 1), "d_ff": (8, 8)}


def attention(sublayer: int, theirs: str) -> dict[str, str]:
    """The modules of an attention and of the norm after it, or before it."""
    projection = f"{sublayer}.branches.0.mixer.projection"
    qkv = {f"{projection}.{x}": f"{theirs}.{x}_proj" for x in "qkv"}
    return {**qkv, f"{projection}.o": f"{theirs}.out_proj", **_norm(sublayer, f"{theirs}_layer_norm")}


def feed(sublayer: int) -> dict[str, str]:
    """The modules of a feed-forward and of the norm after it, or before it."""
    mixer = f"{sublayer}.branches.0.mixer"
    return {f"{mixer}.up": "fc1", f"{mixer}.down": "fc2", **_norm(sublayer, "final_layer_norm")}


def _norm(sublayer: int, theirs: str) -> dict[str, str]:
    return {f"{sublayer}.norm_sum": theirs, f"{sublayer}.norm_in": theirs}


ENCODER = attention(0, "self_attn") | feed(1)
DECODER = attention(0, "self_attn") | attention(1, "encoder_attn") | feed(2)
OF_LED = {
    f"{table.PROJECTION}.{name[0]}{of}": f"self_attn.longformer_self_attn.{name}{of}"
    for name in ("query", "key", "value")
    for of in ("", "_global")
}


def _sizes(
    vocab_size: int,
    heads: type[GQASpec | LocalAndGlobalSpec] = GQASpec,
    *,
    activation: str = "gelu",
    norm_first: bool = False,
) -> tuple[table.Pair, ...]:
    """What all classes say alike; `heads` are the encoder's."""
    return (
        table.only(is_encoder_decoder=True, tie_word_embeddings=True),
        # Of older files.
        table.only(normalize_before=norm_first, add_final_layer_norm=norm_first),
        table.at("vocab_size", int, table.TableSpec, "rows", default=vocab_size),
        *stacks(heads, activation),
        table.at("add_bias_logits", bool, HeadSpec, "bias", default=False),
        table.fixed(tie_word_embeddings=True),
    )


def stacks(heads: type[GQASpec | LocalAndGlobalSpec], activation: str) -> tuple[table.Pair, ...]:
    """The sizes of both stacks; `heads` are the encoder's."""
    return (
        table.at("d_model", int, StackSpec, "d_model"),
        in_encoder(table.at("encoder_attention_heads", int, heads, "n_heads")),
        in_encoder(table.at("encoder_ffn_dim", int, FeedForwardSpec, "d_ff")),
        in_encoder(table.layers("encoder_layers")),
        in_decoder(table.at("decoder_attention_heads", int, GQASpec, "n_heads")),
        in_decoder(table.at("decoder_ffn_dim", int, FeedForwardSpec, "d_ff")),
        in_decoder(table.layers("decoder_layers")),
        table.only(num_hidden_layers=lambda spec: len(encoder_of(spec).blocks)),
        table.activation("activation_function", activation, FeedForwardSpec),
        table.fixed(is_encoder_decoder=True, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
        table.fixed(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0),
    )


def _family(
    hf_type: str,
    architecture: str,
    template: ModelSpec,
    pairs: tuple[table.Pair, ...],
    *,
    stack: str = "model",
    encoder: Mapping[str, str] = ENCODER,
    last: str = "layer_norm",
    unneeded: tuple[str, ...] = (),
    tables: Callable[[ModelSpec], Iterable[TensorRow]] = lambda spec: (),
    ignored: tuple[str, ...] = (),
) -> Family:
    """The family of a class whose tensors are below `stack`, the norms at the end of its stacks called `last`.

    `unneeded` are tensors of its files, `tables` rows of constants.
    """

    def links(spec: ModelSpec) -> Laid:
        found: Laid = {}
        for (ours, side, layers), modules in zip(two_stacks(spec), (encoder, DECODER), strict=True):
            embedding = {"norm": "layernorm_embedding", "terms.1": "embed_positions"}
            found |= within(embedding, f"{ours}.embedding.", f"{stack}.{side}.")
            found |= within({f"{ours}.norm": f"{stack}.{side}.{last}"})
            found |= of_layers(layers, f"{stack}.{side}.layers", modules, ours)
        return found

    def further(spec: ModelSpec) -> list[TensorRow]:
        biased = bool(spec.heads and spec.heads[0].bias)
        bias = reshaped("heads.0.bias", BIAS, lambda t: t[0], lambda t: t[None]) if biased else dropped(BIAS)
        return [bias, dropped(*unneeded), *tables(spec)]

    return encoder_decoder_family(
        hf_type,
        architecture,
        template,
        pairs,
        links,
        prefix=f"{stack}.",
        tables=(f"{stack}.encoder.embed_tokens", f"{stack}.decoder.embed_tokens"),
        further=further,
        of_files=_biased,
        ignored=ignored,
    )


def _biased(spec: ModelSpec, files: TensorFiles) -> ModelSpec:
    """The model with a bias of the logits where files hold one that is not zero, whatever was said."""
    if BIAS not in files or not bool(files.read(BIAS).any()):
        return spec
    return spec.but(heads=tuple(head.but(bias=True) for head in spec.heads))


SCALE = scaled_tokens("scale_embedding", ROOT)
SCALED = scaled_tokens("scale_embedding", ROOT, default=True)
START = table.starts(name="init_std")
LEARNED = (SCALE, START, table.learned("max_position_embeddings", 1024))
ROWS = table.only(static_position_embeddings=False, normalize_embedding=True, extra_pos_embeddings=2)
BART = _family("bart", "BartForConditionalGeneration", bart(**TEMPLATE), (*_sizes(50_265), ROWS, *LEARNED))
PLBART = _family(
    "plbart",
    "PLBartForConditionalGeneration",
    bart(**TEMPLATE),
    (*_sizes(50_005), ROWS, SCALED, *LEARNED[1:]),
)
MVP = _family(
    "mvp",
    "MvpForConditionalGeneration",
    bart(**TEMPLATE),
    # Learned keys and values before a layer's own are not read here.
    (*_sizes(50_267), table.only(use_prompt=False), *LEARNED),
    ignored=("prompt_length", "prompt_mid_dim"),
)
MBART = _family(
    "mbart",
    "MBartForConditionalGeneration",
    mbart(**TEMPLATE),
    (*_sizes(50_265, norm_first=True), ROWS, *LEARNED),
)
BLENDERBOT = _family(
    "blenderbot",
    "BlenderbotForConditionalGeneration",
    blenderbot(**TEMPLATE),
    (
        *_sizes(8008, norm_first=True),
        table.only(static_position_embeddings=False, normalize_embedding=False, extra_pos_embeddings=0),
        SCALE,
        START,
        table.learned("max_position_embeddings", 128),
    ),
)


def _waves(spec: ModelSpec) -> list[TensorRow]:
    """The rows of what PEGASUS's class holds of its positions."""
    angles = one(spec.stack, SinusoidSpec).angles(spec.stack.d_model)
    return [waves(name, spec.context or 1024, angles) for name in POSITIONS]


PEGASUS = _family(
    "pegasus",
    "PegasusForConditionalGeneration",
    pegasus(**TEMPLATE),
    (
        *_sizes(50_265, norm_first=True),
        table.only(static_position_embeddings=True, normalize_embedding=False, extra_pos_embeddings=1),
        SCALE,
        START,
        table.context("max_position_embeddings", 1024),
    ),
    tables=_waves,
)
BIGBIRD_PEGASUS = _family(
    "bigbird_pegasus",
    "BigBirdPegasusForConditionalGeneration",
    bigbird_pegasus(**TEMPLATE),
    (
        *_sizes(96_103, activation="gelu_new", norm_first=True),
        table.at("use_bias", bool, GQASpec, *table.ALL_BIASES, default=False),
        in_encoder(BLOCKS),
        SCALED,
        START,
        table.learned("max_position_embeddings", 4096),
        table.fixed(pad_token_id=0),  # which their class fills a row's last block up with
    ),
    encoder={
        **{f"{table.PROJECTION}.{name[0]}": f"self_attn.self.{name}" for name in ("query", "key", "value")},
        f"{table.PROJECTION}.o": "self_attn.output",
        "0.norm_in": "self_attn_layer_norm",
        **feed(1),
    },
    last="layernorm_embedding",
)
# fairseq counts positions from the id of the padding.
BEHIND_PADDING = table.at(
    "pad_token_id", int, SinusoidSpec, "start", default=1, into=lambda pad: pad + 1, out=lambda start: start - 1
)
M2M_100 = _family(
    "m2m_100",
    "M2M100ForConditionalGeneration",
    m2m_100(**TEMPLATE),
    (
        *_sizes(128_112, activation="relu", norm_first=True),
        table.only(add_bias_logits=False, normalize_embedding=False),
        SCALED,
        START,
        table.context("max_position_embeddings", 1024),
        BEHIND_PADDING,
    ),
)
MARIAN = _family(
    "marian",
    "MarianMTModel",
    marian(**TEMPLATE, vocab_size=8),
    (
        *_sizes(58_101),
        table.only(static_position_embeddings=True, normalize_embedding=False, share_encoder_decoder_embeddings=True),
        table.only(decoder_vocab_size=lambda spec: spec.vocab_size),
        SCALE,
        table.context("max_position_embeddings", 1024),
        table.fixed(share_encoder_decoder_embeddings=True, decoder_vocab_size=lambda spec: spec.vocab_size),
        table.Pair(write=START.write),
    ),
    unneeded=POSITIONS,
    # Marian has a start of its own.
    ignored=("init_std",),
)
LED = _family(
    "led",
    "LEDForConditionalGeneration",
    led(**TEMPLATE),
    (
        *_sizes(50_265, LocalAndGlobalSpec),
        table.only(scale_embedding=False),
        START,
        in_encoder(
            table.at("max_encoder_position_embeddings", int, LearnedPositionsSpec, "n_positions", default=16_384)
        ),
        in_decoder(table.learned("max_decoder_position_embeddings", 1024)),
        in_encoder(WINDOWS),
        # Their class fills a row up with padding, to a multiple of the window.
        table.fixed(scale_embedding=False, pad_token_id=1),
    ),
    stack="led",
    encoder={f"{table.PROJECTION}.o": "self_attn.output", "0.norm_sum": "self_attn_layer_norm", **OF_LED, **feed(1)},
    ignored=("attention_mode",),
)
