"""Nyströmformer to and from transformers' NystromformerModel and the classes with heads.

With as many landmarks as `segment_means_seq_len` their class attends to all keys. Otherwise it takes rows of just so many tokens,
padding among them, and has one start of the iteration for a batch; here texts have any length, and each its own start.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.hf import headings, table
from anyformer.families.hf.bert import LAYER, MLM
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, laid_out, sizes
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.nystromformer import nystromformer, through_landmarks
from anyformer.layers import GQASpec, NystromAttentionSpec, ValueConvolutionSpec
from anyformer.spec import ModelSpec

EXACT = 64  # landmarks of a model that has none here


def _read_landmarks(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n, length = (settings.positive(name, int, EXACT) for name in ("num_landmarks", "segment_means_seq_len"))
    settings.require("inv_coeff_init_option", False)
    if n == length:
        return spec
    if length % n or length > (spec.context or 0):
        raise settings.refusal(
            "segment_means_seq_len",
            f"is the length of every text: it must be a multiple of num_landmarks = {n}, and fit max_position_embeddings",
        )
    return through_landmarks(spec, n)


def _write_landmarks(spec: ModelSpec) -> dict[str, Any]:
    found = next(spec.nested(NystromAttentionSpec), None)
    n, length = (EXACT, EXACT) if found is None else (found.n_landmarks, spec.context or found.n_landmarks)
    return {"num_landmarks": n, "segment_means_seq_len": length - length % n}


HEADS = headings.poolerless("Nystromformer", "nystromformer.", MLM)
NYSTROMFORMER = encoder_family(
    "nystromformer",
    nystromformer(1, 8, 1, landmarks=None, size=65, context=510),
    (
        *sizes(usual="gelu_new"),
        SEGMENTS,
        table.eps(1e-5),
        table.learned("max_position_embeddings", 510),  # behind two rows of none
        table.at("conv_kernel_size", int, ValueConvolutionSpec, "size", default=65),
        table.Pair(_read_landmarks, _write_landmarks),
    ),
    HEADS,
    lambda spec: laid_out(
        {
            **LAYER,
            f"{table.MIXER}.convolution": Theirs("attention.self.conv", by=(one(spec, GQASpec).n_heads, 1, -1, 1)),
        }
    )(spec),
)
