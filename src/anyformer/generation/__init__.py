"""Generation: sampling, cached decoding, stop strings, text piece by piece."""

from anyformer.generation.beam import BeamSearch, Hypothesis, Stopping, search_ids
from anyformer.generation.decode import Decoding, generate_ids
from anyformer.generation.layout import lay_out_for_decoding
from anyformer.generation.sampling import GREEDY, Sampling
from anyformer.generation.text import Continuation, StopStrings, generate_text

__all__ = [
    "GREEDY",
    "BeamSearch",
    "Continuation",
    "Decoding",
    "Hypothesis",
    "Sampling",
    "StopStrings",
    "Stopping",
    "generate_ids",
    "generate_text",
    "lay_out_for_decoding",
    "search_ids",
]
