"""Models used on texts: what class a text has, what vector stands for it."""

from anyformer.inference.embedding import embed, embedded
from anyformer.inference.figures import figures
from anyformer.inference.labelling import Prediction, classify, classify_words
from anyformer.inference.retrieval import Retrieval, retrieve

__all__ = ["Retrieval", "Prediction", "classify", "classify_words", "embed", "embedded", "figures", "retrieve"]
