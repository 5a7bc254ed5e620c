"""What it takes to prepare a batch, by objective, in the process that trains: alone, and with workers that do it.

    python -m benchmarks.rows TEXT

CPU milliseconds of this process for a batch of 8,192 tokens in rows of 512, the median of the turns.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from anyformer.recipe import UL2, CausalLM, Denoising, FillInTheMiddle, MaskedLM, Recipe
from anyformer.text import Tokenizer, encode_corpus, read_corpus
from anyformer.training.data.text import TextData
from anyformer.training.data.workers import prepared
from anyformer.training.objectives.specification import MASK
from benchmarks.measure import cpu_seconds

VOCAB, TURNS = 4096, 30
SAMPLE_NBYTES = 2_000_000  # of text are enough to learn the tokens from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    corpus = read_corpus(parser.parse_args().text)
    torch.set_num_threads(1)
    specials = (*UL2.specials, *FillInTheMiddle.specials)
    plain = Tokenizer.train(corpus.sample(SAMPLE_NBYTES).texts(), VOCAB - len(specials) - len(MASK))
    tokenizer = plain.with_specials(specials, MASK)
    data = TextData(encode_corpus(corpus, tokenizer), None, tokenizer)
    print(f"{'objective':15} {'alone':>8} {'2 workers':>10}   CPU ms a batch")
    for objective in (CausalLM(), FillInTheMiddle(), MaskedLM(), Denoising(), UL2()):
        recipe = Recipe(objective=objective, tokens=1_000_000, batch_tokens=8192, seq_len=512)
        alone, helped = (1e3 * _seconds(data, recipe, workers) for workers in (0, 2))
        print(f"{objective.kind:15} {alone:8.2f} {helped:10.2f}", flush=True)


def _seconds(data: TextData, recipe: Recipe, workers: int) -> float:
    with prepared(data.feed(recipe), workers) as batches:
        next(batches)
        return statistics.median(cpu_seconds(lambda: next(batches)) for _ in range(TURNS))


if __name__ == "__main__":
    main()
