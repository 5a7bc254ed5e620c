"""An encoder and a decoder of one size learn the same labels: python reads_both_ways.py FILE.jsonl [--params N] [--tokens N]."""

import argparse

import anyformer as af
from anyformer.inference import figures
from anyformer.inference.classification import labelled_objective
from anyformer.recipe import AdamW, Classification, Constant, Recipe
from anyformer.text import Tokenizer, read_labelled, split_labelled
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.run import RunOptions, train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file")
parser.add_argument("--params", type=int, default=1_000_000)
parser.add_argument("--vocab", type=int, default=2048)
parser.add_argument("--tokens", type=int, default=500_000)
parser.add_argument("--batch-tokens", type=int, default=2048)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seeds", type=int, default=2)
given = parser.parse_args()

texts, unseen = split_labelled(read_labelled(given.file), 0.2)
tokenizer = Tokenizer.train(texts.texts(), given.vocab).with_specials((), Classification.roles)
data = LabelledData(texts, unseen, tokenizer)
print(f"{len(texts.rows)} texts to train on, {len(unseen.rows)} to judge by; labels {', '.join(data.labels)}")
for name in ("bert-base", "gpt2"):
    body = af.resize(af.preset(name), n_params=given.params, vocab_size=data.vocab_size)
    spec = af.with_classifier(body, len(data.labels))
    for seed in range(given.seeds):
        recipe = Recipe(
            objective=Classification(truncate=True),
            tokens=given.tokens,
            batch_tokens=given.batch_tokens,
            seq_len=128,
            optimizer=AdamW(lr=given.lr),
            schedule=(Constant(),),
            seed=seed,
        )
        result = train(spec, recipe, data, options=RunOptions(validations=0, plan=False))
        validation = data.validation(recipe)
        assert validation is not None
        found = figures(result.model, labelled_objective(spec), validation)
        print(
            f"{name} seed {seed}: {result.n_params:,} parameters, "
            + ", ".join(f"{k} {v:.3f}" for k, v in found.items())
        )
