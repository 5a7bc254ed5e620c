"""What the benchmarks set beside ours is the same thing: from the same weights, the same losses and gradients."""

from pathlib import Path

import pytest
import torch

from anyformer import build, load_spec
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.text import ParallelCorpus, Tokenizer
from anyformer.text.parallel import EncodedPairs
from benchmarks.torch_transformer import TorchTransformer, layout, put, taken
from benchmarks.translation import inputs, loss_of

MODEL = Path(__file__).parent.parent / "examples" / "multi30k" / "model.yaml"


def test_the_torch_transformer_of_the_translation_benchmark_is_ours() -> None:
    torch.manual_seed(0)  # a unit that rounding puts on the other side of a ReLU's 0 has another gradient
    model = build(load_spec(str(MODEL)), seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.02)
    theirs = TorchTransformer(model.spec.vocab_size, dropout=0.0)
    put(dict(model.named_parameters()), theirs)
    for name, weight in taken(theirs).items():
        assert torch.equal(weight, model.get_parameter(name))

    lines = ["ein Hund", "zwei Kinder im Schnee", "drei"]
    corpus = ParallelCorpus(tuple((line, line.upper()) for line in lines))
    rows = EncodedPairs(corpus, Tokenizer.train(corpus.texts(), 270)).batch(torch.arange(3).numpy())
    source, source_real, target, target_real = inputs(rows)
    out = model(source, source_real.long(), decoder_input_ids=target, decoder_attention_mask=target_real.long())
    total, _ = cross_entropy(model.head(), out.last_hidden_state, torch.from_numpy(rows.labels))
    ours = total / (rows.labels >= 0).sum()
    other = loss_of(theirs.train(), rows)
    assert ours.item() == pytest.approx(other.item(), rel=1e-6)
    ours.backward()
    other.backward()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
    for name, place, part in layout():
        mine, own = model.get_parameter(name).grad, gradients[place]
        assert mine is not None
        assert own is not None
        torch.testing.assert_close(mine, part(own), rtol=1e-4, atol=1e-6)
