"""What is done to a text so that restoring it teaches something: each a pure function of tokens and a random generator.

Token ids are int64 [token], one document; nothing here pads or batches. The generator is the caller's, so that what a step sees
is a function of the seed, the step and the row alone.
"""

from anyformer.text.noise.denoising import deleted, infilled, permuted_sentences, rotated
from anyformer.text.noise.masking import masked, whole_words
from anyformer.text.noise.permutation import Permuted, permuted
from anyformer.text.noise.sentences import Pair, elsewhere, neighbours, passages, shortened
from anyformer.text.noise.spans import Example, noise_spans, prefix, span_corrupted
from anyformer.text.noise.ul2 import denoised

__all__ = [
    "Example",
    "Pair",
    "Permuted",
    "deleted",
    "denoised",
    "elsewhere",
    "infilled",
    "masked",
    "neighbours",
    "noise_spans",
    "passages",
    "permuted",
    "permuted_sentences",
    "prefix",
    "rotated",
    "shortened",
    "span_corrupted",
    "whole_words",
]
