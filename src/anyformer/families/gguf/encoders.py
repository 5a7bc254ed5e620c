"""Encoders in GGUF files, which have no head but how tokens become one vector, and, of EmbeddingGemma, layers behind that."""

from __future__ import annotations

from operator import itemgetter

from anyformer.families.compose import changed, untied
from anyformer.families.gguf.dialect import (
    GATE_AND_UP,
    GROUPED,
    HEAD_DIM,
    LAYER,
    LAYER_NORM,
    ONE_MORE,
    SEGMENTS,
    SIZES,
    TOKENS,
    Adapted,
    Block,
    Dialect,
    Keys,
    Turn,
    with_epsilon,
    without,
)
from anyformer.families.gguf.keys import (
    LOCAL,
    NOT_CAUSAL,
    PATTERNED_BY_6,
    PATTERNED_FROM_FULL,
    ROTARY_BY_TYPE,
    WINDOW,
    WINDOWED,
    only,
)
from anyformer.families.hf import table
from anyformer.families.hf.mapping import one
from anyformer.layers import LearnedPositionsSpec
from anyformer.spec import ModelSpec, TableSpec

OF_TYPES = "token_types.weight"
# A table of kinds of text, of which files have no axis for the only one.
KINDS = {
    OF_TYPES: Turn(
        lambda tensor, _: tensor.reshape(-1, tensor.shape[-1]),
        lambda tensor, _: tensor[0] if len(tensor) == 1 else tensor,
    )
}
OFFSET = {r".*norm\.weight": ONE_MORE}
GELU = {"hidden_activation": "gelu_pytorch_tanh"}
NORMS: Block = {name: LAYER[name] for name in ("0.norm_in", "1.norm_in")}
NORMS_BEHIND: Block = {"0.norm_sum": "attn_output_norm", "1.norm_sum": "layer_output_norm"}
GATES: Block = {name: LAYER[name] for name in GATE_AND_UP}
WRITTEN: Block = {name: LAYER[name] for name in (f"{table.PROJECTION}.o", f"{table.FEED}.down")}
OF_BERT: Block = {
    **{f"{table.PROJECTION}.{x}": f"attn_{x}" for x in "qkv"},
    f"{table.FEED}.up": "ffn_up",
    **WRITTEN,
    **NORMS_BEHIND,
}
EMBEDDED = {"stack.embedding.norm": "token_embd_norm", "stack.embedding.terms.1": "position_embd"}
# Tokens are as wide as the model, which a class may have to be told.
AS_WIDE = Keys(
    ("embedding_length",),
    lambda said, _: dict.fromkeys(("hidden_size", "embedding_size"), said["embedding_length"]),
    lambda config: {"embedding_length": int(config["hidden_size"])},
)


def headless(spec: ModelSpec) -> Adapted:
    """An encoder without its heads, of which files hold none."""
    names = " and ".join(head.name for head in spec.heads)
    return Adapted(spec.but(heads=()), note=f"its heads, {names}, have no place there" if names else "")


def counted_from_0(spec: ModelSpec) -> Adapted:
    """The same, its table of positions without the rows before the first token's (RoBERTa)."""
    plain = headless(spec)
    for i, term in enumerate(spec.stack.embedding.terms):
        if isinstance(term, LearnedPositionsSpec) and term.offset:
            cut = itemgetter(slice(term.offset, None))
            positions = changed(plain.spec, LearnedPositionsSpec, offset=0, padding=None)
            return plain._replace(spec=positions, changes={f"stack.embedding.terms.{i}.weight": cut})
    return plain


def without_words(spec: ModelSpec) -> Adapted:
    """The same, of a model whose head would predict tokens by the embedding's table."""
    plain, shared = headless(spec), one(spec.stack.embedding, TableSpec).shared
    if shared is None:
        return plain
    own = plain.spec.but(stack=untied(spec.stack))
    return plain._replace(spec=own, names={f"{TOKENS}.weight": f"shared.{shared}.weight"})


ENCODERS = (
    Dialect(
        "bert",
        "distilbert",
        {
            "block_count": "n_layers",
            "embedding_length": "dim",
            "feed_forward_length": "hidden_dim",
            "attention.head_count": "n_heads",
            "context_length": "max_position_embeddings",
        },
        (NOT_CAUSAL, only(LAYER_NORM, 1e-12), only(SEGMENTS, 1)),
        OF_BERT,
        EMBEDDED,
        fixed={"architectures": ["DistilBertModel"]},
        adapted=headless,
    ),
    Dialect(
        "bert",
        "electra",  # BERT's encoder, whose class never has a pooler
        {**with_epsilon(without(SIZES, GROUPED), "layer_norm_eps", LAYER_NORM), SEGMENTS: "type_vocab_size"},
        (NOT_CAUSAL, AS_WIDE),
        OF_BERT,
        {**EMBEDDED, "stack.embedding.terms.2": "token_types"},
        turns=KINDS,
        fixed={"architectures": ["ElectraModel"]},
        when=OF_TYPES,
        holds=("bert", "roberta", "xlm-roberta", "camembert", "ernie"),
        adapted=counted_from_0,
    ),
    Dialect(
        "gemma-embedding",
        "gemma3_text",
        {**HEAD_DIM, LOCAL: "rope_local_base_freq"},
        (NOT_CAUSAL, WINDOWED, PATTERNED_BY_6),
        turns=OFFSET,
        fixed={**GELU, "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True},
        dense=("dense_2", "dense_3"),
        adapted=without_words,
        depth_of_27b=0,
    ),
    Dialect(
        "modern-bert",
        "modernbert",
        {
            **without(SIZES, GROUPED, "rms_norm_eps"),
            "attention.layer_norm_rms_epsilon": "norm_eps",
            LAYER_NORM: "norm_eps",
            WINDOW: "local_attention",  # to either side together
        },
        (NOT_CAUSAL, PATTERNED_FROM_FULL, ROTARY_BY_TYPE),
        {**NORMS, table.QKV: "attn_qkv", GATE_AND_UP: "ffn_up", **WRITTEN},
        {"stack.norm": "output_norm", "stack.embedding.norm": "token_embd_norm"},
        fixed={"architectures": ["ModernBertModel"]},
        adapted=headless,
    ),
    Dialect(
        "nomic-bert",
        "nomic_bert",
        {**with_epsilon(without(SIZES, GROUPED), "layer_norm_eps", LAYER_NORM), SEGMENTS: "type_vocab_size"},
        (NOT_CAUSAL,),
        {**GATES, table.QKV: "attn_qkv", **WRITTEN, **NORMS_BEHIND},
        {"stack.embedding.norm": "token_embd_norm", "stack.embedding.terms.1": "token_types"},
        turns=KINDS,
        fixed={"architectures": ["NomicBertModel"]},
        adapted=headless,
    ),
)
