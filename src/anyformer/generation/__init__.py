"""Generation: sampling, cached decoding, guesses that are checked, rows that come and go, stop strings, text piece by piece."""

from anyformer.generation.batch import BatchRow, Chosen, ContinuousBatch, Wanted
from anyformer.generation.beam import BeamSearch, Hypothesis, Stopping, search_ids
from anyformer.generation.compiled import CompiledStep
from anyformer.generation.decode import Decoding, generate_ids
from anyformer.generation.grammar import Form, Grammar, Grammars, grammars_of, spaced
from anyformer.generation.guesses import DraftModel, Guessing, OwnModules, PromptLookup
from anyformer.generation.layout import lay_out_for_decoding
from anyformer.generation.prefixes import Prefixes
from anyformer.generation.released import DRAWING, UNSAID, Released, released
from anyformer.generation.sampling import GREEDY, Sampling
from anyformer.generation.speculative import SpeculativeDecoding
from anyformer.generation.static_cache import StaticCache
from anyformer.generation.text import Continuation, GrowingText, StopStrings, generate_text
from anyformer.text.prompts import encode_prompt

__all__ = [
    "BatchRow",
    "BeamSearch",
    "Chosen",
    "CompiledStep",
    "Continuation",
    "ContinuousBatch",
    "DRAWING",
    "Decoding",
    "DraftModel",
    "Form",
    "GREEDY",
    "Grammar",
    "Grammars",
    "GrowingText",
    "Guessing",
    "Hypothesis",
    "OwnModules",
    "Prefixes",
    "PromptLookup",
    "Released",
    "Sampling",
    "SpeculativeDecoding",
    "StaticCache",
    "StopStrings",
    "Stopping",
    "UNSAID",
    "Wanted",
    "encode_prompt",
    "generate_ids",
    "generate_text",
    "grammars_of",
    "lay_out_for_decoding",
    "released",
    "search_ids",
    "spaced",
]
