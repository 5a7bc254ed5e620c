"""A small Llama trained on a text file through the Python API, evaluated, saved and heard.

python examples/train_tiny.py shakespeare.txt --params 1000000 --tokens 2000000 --out tiny-llama
"""

from __future__ import annotations

import argparse
from pathlib import Path

import anyformer as af
from anyformer.recipe import AdamW, Recipe
from anyformer.text import Tokenizer, encode_corpus, read_corpus
from anyformer.training.data.text import TextData
from anyformer.training.run import RunOptions, train
from anyformer.training.run.progress import live_view


def main() -> None:
    """Tokenize, train, evaluate, save, load, generate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", type=Path, help="a file or folder of text")
    parser.add_argument("--out", type=Path, required=True, help="a new directory for the trained model")
    parser.add_argument("--params", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--prompt", default="The ")
    options = parser.parse_args()

    training, held_out = read_corpus(options.text).split(0.1)
    tokenizer = Tokenizer.train(training.texts(), options.vocab)
    data = TextData(encode_corpus(training, tokenizer), encode_corpus(held_out, tokenizer), tokenizer)

    llama = af.load_spec("llama2-7b")
    spec = af.resize(llama, n_params=options.params, vocab_size=tokenizer.vocab_size, context=256)
    recipe = Recipe(tokens=options.tokens, batch_tokens=2048, seq_len=128, optimizer=AdamW(lr=2e-3))
    result = train(spec, recipe, data, options=RunOptions(plan=False), watcher=live_view())

    assert result.evaluation is not None
    print(f"{result.n_params:,} parameters, {result.tokens:,} tokens")
    print(f"{result.evaluation.bits_per_byte:.4f} bits a byte on the held-out text")
    print(af.save(result.model, options.out, tokenizer=tokenizer))

    model, loaded = af.load(options.out)
    assert loaded is not None
    print(options.prompt + af.generate(model, loaded, options.prompt, max_new_tokens=60, temperature=0.8, seed=1))


if __name__ == "__main__":
    main()
