"""Text: tokenizers, corpora, encoding, packing and sampling. Nothing here needs PyTorch; batches are NumPy arrays."""

from anyformer.text.corpus import Corpus, read_corpus
from anyformer.text.encoded import EncodedCorpus, encode_corpus, encoded_when_read
from anyformer.text.labelled import LabelledCorpus, LabelledRow, split_labelled
from anyformer.text.labelled_files import read_labelled
from anyformer.text.mixing import MixedRows, MixtureSampler
from anyformer.text.packing import NOT_PREDICTED, Batch, Packed, evenly_spread, pack, pack_whole
from anyformer.text.parallel import (
    EncodedPairs,
    PairBatch,
    PairSampler,
    ParallelCorpus,
    length_batches,
    read_parallel,
    some_of,
    split_pairs,
)
from anyformer.text.sampler import Sampler, StreamSampler
from anyformer.text.schemes import SCHEMES, CharacterBPE, Characters, WordPiece, Words, scheme
from anyformer.text.tokenizer import Tokenizer
from anyformer.text.trained import compared, spelled

__all__ = [
    "NOT_PREDICTED",
    "SCHEMES",
    "Batch",
    "CharacterBPE",
    "Characters",
    "Corpus",
    "EncodedCorpus",
    "EncodedPairs",
    "LabelledCorpus",
    "LabelledRow",
    "MixedRows",
    "MixtureSampler",
    "Packed",
    "PairBatch",
    "PairSampler",
    "ParallelCorpus",
    "Sampler",
    "StreamSampler",
    "Tokenizer",
    "WordPiece",
    "Words",
    "compared",
    "encode_corpus",
    "encoded_when_read",
    "evenly_spread",
    "length_batches",
    "pack",
    "pack_whole",
    "read_corpus",
    "read_labelled",
    "read_parallel",
    "scheme",
    "some_of",
    "spelled",
    "split_labelled",
    "split_pairs",
]
