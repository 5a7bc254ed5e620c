"""Text: tokenizers, corpora, encoding, packing and sampling. Nothing here needs PyTorch; batches are NumPy arrays."""

from anyformer.disk.cache import cache_directory
from anyformer.text.comparison import Compared, compared, spelled
from anyformer.text.corpus import Corpus, read_corpus
from anyformer.text.encoded import EncodedCorpus, encode_corpus
from anyformer.text.framing import Framed
from anyformer.text.labelled import LabelledCorpus, LabelledRow, split_labelled
from anyformer.text.labelled_files import read_labelled
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
from anyformer.text.sampler import LaneSampler, Sampler
from anyformer.text.schemes import (
    SCHEMES,
    ByteLevelBPE,
    CharacterBPE,
    Characters,
    Scheme,
    Unigram,
    WordPiece,
    Words,
    scheme,
)
from anyformer.text.sources import Document
from anyformer.text.stream import TextStream
from anyformer.text.tokenizer import Tokenizer

__all__ = [
    "NOT_PREDICTED",
    "SCHEMES",
    "Batch",
    "ByteLevelBPE",
    "CharacterBPE",
    "Characters",
    "Compared",
    "Corpus",
    "Document",
    "EncodedCorpus",
    "EncodedPairs",
    "Framed",
    "LaneSampler",
    "LabelledCorpus",
    "LabelledRow",
    "Packed",
    "PairBatch",
    "PairSampler",
    "ParallelCorpus",
    "Sampler",
    "Scheme",
    "TextStream",
    "Tokenizer",
    "Unigram",
    "WordPiece",
    "Words",
    "cache_directory",
    "compared",
    "encode_corpus",
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
