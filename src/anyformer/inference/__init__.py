"""Models used on texts: what follows them, what class they have, what vector stands for them, how well they are predicted."""

from anyformer.inference.audit import audit
from anyformer.inference.classification import Prediction, Predictions, classify, classify_words, predict
from anyformer.inference.embedding import embed, embedded
from anyformer.inference.evaluation import evaluate
from anyformer.inference.figures import figures
from anyformer.inference.retrieval import Retrieval, retrieve
from anyformer.inference.translation import translate
from anyformer.inference.writing import generate

__all__ = [
    "Prediction",
    "Predictions",
    "Retrieval",
    "audit",
    "classify",
    "classify_words",
    "embed",
    "embedded",
    "evaluate",
    "figures",
    "generate",
    "predict",
    "retrieve",
    "translate",
]
