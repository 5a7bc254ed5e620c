"""Studies with made-up but lifelike numbers, deterministic, for the tests of reports and tables."""

import math

import numpy as np

from anyformer.study.results import (
    Baseline,
    Data,
    DocumentLoss,
    LossPoint,
    RunResult,
    Study,
    StudyMachine,
    Trial,
    Tuning,
)

N_STEPS = 400
TOKENS_PER_STEP = 2048
ARCHITECTURES = {  # final loss, parameters, of them embedding, tokens per second, learning rate
    "transformer-lm": (4.02, 3_004_416, 835_584, 8_900.0, 1e-3),
    "gpt2": (3.86, 3_011_072, 901_120, 8_450.0, 2e-3),
    "llama2": (3.71, 2_998_272, 1_671_168, 7_300.0, 3e-3),
}
SAMPLE = '''def _read_header(self, name, default=None):
    """Return the value of the header, or the default."""
    if name not in self._headers:
        return default
    for key, value in self._headers.items():
        if key.lower() == name:
            return value
    raise KeyError("%s is not in the list" % name)
'''


def document_lengths(n_documents: int = 60) -> tuple[np.ndarray, np.ndarray]:
    nbytes = np.random.default_rng(7).lognormal(9.0, 1.0, n_documents).astype(int) + 200
    return nbytes, nbytes // 3


def run(architecture: str, seed: int, *, n_steps: int = N_STEPS, failure: str | None = None) -> RunResult:
    final, n_params, n_embedding, speed, learning_rate = ARCHITECTURES[architecture]
    rng = np.random.default_rng([seed, len(architecture)])
    final += 0.02 * float(rng.normal())
    flops_per_token = 6.0 * (n_params - n_embedding) + 6.0 * 4096 * 192
    points, validation = [], []
    for step in range(1, n_steps + 1):
        tokens = step * TOKENS_PER_STEP
        clean = final + (8.32 - final) * (1 + step / 9) ** -0.75
        point = LossPoint(step, tokens, tokens * flops_per_token, tokens / speed, clean + 0.06 * float(rng.normal()))
        points.append(point)
        if step % 50 == 0:
            validation.append(point._replace(loss=clean + 0.03))
    nbytes, tokens = document_lengths()
    hardness = np.random.default_rng(3).normal(1, 0.15, len(nbytes))  # a text is hard for all
    nats = tokens * (final + 0.3) * (hardness + 0.02 * rng.normal(size=len(nbytes)))
    documents = tuple(DocumentLoss(*row) for row in zip(nats.tolist(), tokens.tolist(), nbytes.tolist(), strict=True))
    return RunResult(
        architecture=architecture, seed=seed, learning_rate=learning_rate, n_params=n_params,
        n_params_embedding=n_embedding, flops_per_token=flops_per_token, tokens_seen=n_steps * TOKENS_PER_STEP,
        tokens_per_second=speed, seconds=n_steps * TOKENS_PER_STEP / speed, curve=tuple(points),
        validation=tuple(validation), early_loss=validation[1].loss if len(validation) > 1 else None,
        documents=() if failure else documents, sample="" if failure else SAMPLE, failure=failure,
    )  # fmt: skip


def study(*runs: RunResult, title: str = "transformer-lm, gpt2 and llama2 at 3 M parameters") -> Study:
    nbytes, tokens = document_lengths()
    return Study(
        title=title,
        command="anyformer compare transformer-lm gpt2 llama2 --data stdlib --params 3M --tokens 820k",
        date="2026-11-21T10:24:00",
        data=Data(
            description="Python 3.12 standard library, 672 files", fingerprint="sha256:5f1c9e0b7d2a",
            train_tokens=2_914_522, validation_documents=len(nbytes),
            validation_tokens=int(tokens.sum()), validation_nbytes=int(nbytes.sum()),
        ),
        tokenizer="byte-level BPE, 4,096 entries, trained on the training split",
        tokenizer_fingerprint="sha256:91d0aa34c2ef",
        flops_convention="training: 3 × forward matrix products, causal attention counted at the keys seen",
        early="validation loss after 25 % of the tokens",
        machine=StudyMachine(description="AMD EPYC 7B13, 2 cores", threads=2, peak_flops_per_second=290e9),
        runs=runs,
        baselines=(
            Baseline(name="unigram", score=6.2 / math.log(2) * int(tokens.sum()) / int(nbytes.sum()), loss=6.2),
            Baseline(name="uniform", score=12 * int(tokens.sum()) / int(nbytes.sum()), loss=12 * math.log(2)),
        ),
        tuning=(
            Tuning(architecture="transformer-lm", chosen=1e-3, trials=(
                Trial(learning_rate=5e-4, validation_loss=4.51), Trial(learning_rate=1e-3, validation_loss=4.33),
                Trial(learning_rate=3e-3, validation_loss=None),
            )),
            Tuning(architecture="llama2", chosen=3e-3, trials=(
                Trial(learning_rate=1e-3, validation_loss=4.19), Trial(learning_rate=3e-3, validation_loss=4.01),
            )),
        ),
        versions=(("anyformer", "0.1.0"), ("torch", "2.13.0"), ("python", "3.12.4")),
        settings=(("context", "256 tokens"), ("batch", "8 × 256 tokens"), ("schedule", "cosine to 10 %"),
                  ("optimizer", "AdamW 0.9 / 0.95, decay 0.1")),
        prompt="def _read",
        notes=("All runs saw the same batches in the same order.",),
    )  # fmt: skip


def one_seed() -> Study:
    failed = run("gpt2", 0, n_steps=140, failure="the loss was NaN at step 141; lower the learning rate")
    return study(run("transformer-lm", 0), failed, run("llama2", 0))


def three_seeds() -> Study:
    runs = [run(name, seed) for name in ARCHITECTURES for seed in range(3)]
    runs[5] = run("gpt2", 2, n_steps=230, failure="out of memory at step 231")
    return study(*runs)
