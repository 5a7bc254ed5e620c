"""Models used on texts: what follows them, what class they have, what vector stands for them, how well they are predicted."""

from anyformer.inference.answering import evaluate_task
from anyformer.inference.audit import audit
from anyformer.inference.classification import Prediction, Predictions, classify, predict
from anyformer.inference.embedding import Retrieval, embed, embedded, retrieve
from anyformer.inference.evaluation import evaluate
from anyformer.inference.figures import figures
from anyformer.inference.writing import generate, translate

__all__ = [
    "Prediction",
    "Predictions",
    "Retrieval",
    "audit",
    "classify",
    "embed",
    "embedded",
    "evaluate",
    "evaluate_task",
    "figures",
    "generate",
    "predict",
    "retrieve",
    "translate",
]
