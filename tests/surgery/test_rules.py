"""What becomes of each axis, against loops that know nothing of the code: heads, neurons, experts, tokens, layers, stacks."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import UsageError
from anyformer.families import PRESETS, preset, with_classifier
from anyformer.families.compose import elsewhere
from anyformer.layers import GatedDeltaNetSpec, GQASpec, LightningAttentionSpec, SSDSpec
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import Count, Place, Width
from anyformer.surgery import Anatomy, Layer, as_they_stand, read_layers, rows_by_text
from anyformer.text import Tokenizer
from anyformer.text.schemes import Unigram, WordPiece
from tests.laws.models import randomised
from tests.laws.tolerance import FLOAT32, close
from tests.surgery.operated import operated
from tests.text.samples import llama_like

BASE = shrink(preset("llama3-8b").spec)  # 4 heads of 16, 2 of keys; 112 neurons; 2 layers
ATTENTION, NETWORK = "stack.blocks.0.mixing.0.mixer.projection", "stack.blocks.0.features.0.mixer"


def tensor(model: Transformer, path: str) -> Tensor:
    return model.state_dict()[Anatomy(model.spec).tensors[path].name]


def test_fewer_heads_are_means() -> None:
    donor = randomised(BASE)
    model, done = operated(af.vary(BASE, n_heads=2, n_kv_heads=1), donor)
    for name, (n, given) in {"q": (2, 4), "k": (1, 2), "v": (1, 2)}.items():
        old, new = tensor(donor, f"{ATTENTION}.{name}.weight"), tensor(model, f"{ATTENTION}.{name}.weight")
        each = given // n
        for head in range(n):
            of = [old[(head * each + i) * 16 : (head * each + i + 1) * 16] for i in range(each)]
            close(new[head * 16 : head * 16 + 16], torch.stack(of).mean(0), FLOAT32)
    old, new = tensor(donor, f"{ATTENTION}.o.weight"), tensor(model, f"{ATTENTION}.o.weight")
    for head in range(2):
        first, second = (old[:, (2 * head + i) * 16 : (2 * head + i + 1) * 16] for i in (0, 1))
        close(new[:, head * 16 : head * 16 + 16], first + second, FLOAT32)
    assert "2 heads made 1, by their means" in {each.how for each in done.values()}


def test_of_heads_that_do_not_divide_each_other_nothing_is_carried() -> None:
    _, done = operated(af.vary(BASE, n_heads=3, n_kv_heads=3, head_dim=16), randomised(BASE))
    names = {path: stand.name for path, stand in Anatomy(af.vary(BASE, n_heads=3, n_kv_heads=3)).tensors.items()}
    assert not {names[f"{ATTENTION}.{each}.weight"] for each in "qkvo"} & done.keys()


def test_fewer_neurons_are_those_that_weigh_most() -> None:
    donor = randomised(BASE)
    model, _ = operated(af.vary(BASE, d_ff=40), donor)
    gate, up, down = (tensor(donor, f"{NETWORK}.{each}.weight") for each in ("gate", "up", "down"))
    weights = [
        math.prod(
            math.sqrt(sum(x * x for x in each)) for each in (gate[i].tolist(), up[i].tolist(), down[:, i].tolist())
        )
        for i in range(112)
    ]
    kept = sorted(sorted(range(112), key=lambda i: -weights[i])[:40])
    for name, old in (("gate", gate[kept]), ("up", up[kept]), ("down", down[:, kept])):
        assert torch.equal(tensor(model, f"{NETWORK}.{name}.weight"), old)


def test_experts_that_share_out_a_network() -> None:
    donor = randomised(BASE)
    spec = af.vary(BASE, experts="mixtral", d_ff=48)
    model, done = operated(spec, donor)
    for name, dim in (("gate", 0), ("up", 0), ("down", 1)):
        old, new = tensor(donor, f"{NETWORK}.{name}.weight"), tensor(model, f"{NETWORK}.experts.{name}.weight")
        for expert, each in enumerate(new):
            own = [(expert * 48 + i) % 112 for i in range(48)]
            assert torch.equal(each, old.index_select(dim, torch.tensor(own)))
    assert not any("router" in name for name in done)


def test_more_experts_are_the_same_again_with_routes_of_their_own() -> None:
    given = af.vary(BASE, experts="mixtral", d_ff=112)
    n = given.stack.blocks[0].mixers[1].router.n_experts  # type: ignore[attr-defined]
    donor = randomised(given)
    model, _ = operated(af.vary(given, n_experts=n + 3), donor)
    for name in ("gate", "up", "down"):
        old, new = (tensor(each, f"{NETWORK}.experts.{name}.weight") for each in (donor, model))
        assert torch.equal(new, torch.cat((old, old[:3])))
    old, new = (tensor(each, f"{NETWORK}.router.weight") for each in (donor, model))
    assert torch.equal(new[:n], old)
    assert not torch.equal(new[n:], old[:3])
    fewer, _ = operated(given, model)
    assert torch.equal(tensor(fewer, f"{NETWORK}.experts.up.weight"), tensor(donor, f"{NETWORK}.experts.up.weight"))


def test_more_positions_are_the_first_ones_again() -> None:
    spec = shrink(preset("gpt2").spec)
    donor = randomised(spec)
    path = "stack.embedding.LearnedPositions.0.weight"
    n = len(tensor(donor, path))
    longer, _ = operated(af.vary(spec, context=2 * n + 5, n_positions=2 * n + 5), donor)
    old, new = tensor(donor, path), tensor(longer, path)
    assert all(torch.equal(new[i], old[i % n]) for i in range(2 * n + 5))
    shorter, _ = operated(spec, longer)
    assert torch.equal(tensor(shorter, path), old)


@pytest.mark.parametrize(
    ("mixer", "maps"),
    [
        (
            GatedDeltaNetSpec(n_key_heads=Count(2), n_heads=Count(4), key_dim=Width(16), value_dim=Width(16)),
            {"q": ("q", 2), "k": ("k", 2), "v": ("v", 4), "out": ("o", 4)},
        ),
        (
            LightningAttentionSpec(n_heads=Count(4), head_dim=Width(16)),
            {"q": ("q", 4), "k": ("k", 4), "v": ("v", 4), "out": ("o", 4)},
        ),
    ],
    ids=["GatedDeltaNet", "LightningAttention"],
)
def test_attention_as_the_beginning_of_a_state(mixer: af.MixerSpec, maps: dict[str, tuple[str, int]]) -> None:
    donor = randomised(BASE)
    model, _ = operated(elsewhere(BASE, {0}, mixer), donor)
    there, were = "stack.blocks.1.mixing.0.mixer", ATTENTION.replace("blocks.0", "blocks.1")
    for name, (map_of, n) in maps.items():
        old, new = tensor(donor, f"{were}.{map_of}.weight"), tensor(model, f"{there}.{name}.weight")
        if map_of == "o":
            assert torch.equal(new, old)
            continue
        heads = list(old.split(16))
        if n < len(heads):
            heads = [(a + b) / 2 for a, b in list(pairwise(heads))[::2]]
        elif n > len(heads):
            heads = [head for head in heads for _ in range(n // len(heads))]
        close(new, torch.cat(heads), FLOAT32)


def test_attention_as_the_beginning_of_mamba() -> None:
    """C is the queries' map, B the keys', x the values' (Wang et al. 2024, section 2.2); z and Δ are new."""
    donor = randomised(BASE)
    mixer = SSDSpec(n_heads=Count(4), head_dim=Width(16), state_dim=Width(16), n_groups=Count(2))
    model, done = operated(elsewhere(BASE, set(), mixer), donor)
    q, k, v, o = (tensor(donor, f"{ATTENTION}.{each}.weight") for each in "qkvo")
    inner = tensor(model, "stack.blocks.0.mixing.0.mixer.inner.weight")
    z, x, b, c, delta = inner.split([64, 64, 32, 32, 4])
    close(c, (q.unflatten(0, (2, 2, 16)).sum(1) / 2).flatten(0, 1), FLOAT32)
    assert torch.equal(b, k)
    assert torch.equal(x, torch.cat((v[:16], v[:16], v[16:], v[16:])))
    assert torch.equal(tensor(model, "stack.blocks.0.mixing.0.mixer.out.weight"), o)
    name = Anatomy(model.spec).tensors["stack.blocks.0.mixing.0.mixer.inner.weight"].name
    drawn = af.build(model.spec, seed=1).state_dict()[name]
    assert done[name].numel == 128 * 32
    assert torch.equal(z, drawn[:64])
    assert torch.equal(delta, drawn[-4:])
    back, _ = operated(BASE, model)  # and the other way
    assert torch.equal(tensor(back, f"{ATTENTION}.k.weight"), k)


def test_local_and_global_maps_begin_as_one() -> None:
    """Beltagy et al. 2020, section 5; and back the local ones are kept."""
    bert, longformer = (shrink(preset(name).spec) for name in ("roberta-base", "longformer-base-4096"))
    donor = randomised(bert)
    long, _ = operated(longformer, donor)
    for name in "qkv":
        for own in ("weight", "bias"):
            given = tensor(donor, f"{ATTENTION}.{name}.{own}")
            assert torch.equal(tensor(long, f"{ATTENTION}.{name}.{own}"), given)
            assert torch.equal(tensor(long, f"{ATTENTION}.{name}_global.{own}"), given)
    other = randomised(longformer, seed=1)
    back, _ = operated(bert, other)
    assert torch.equal(tensor(back, f"{ATTENTION}.v.weight"), tensor(other, f"{ATTENTION}.v.weight"))


def test_the_bias_of_what_reads_heads_goes_into_another_mixer() -> None:
    spec = shrink(preset("gpt2").spec)
    donor = randomised(spec)
    n, width, _ = next(spec.nested(GQASpec)).sizes(Place(spec.stack.d_model))
    mixer = SSDSpec(n_heads=Count(n), head_dim=Width(width), state_dim=Width(width), n_groups=Count(n), bias=True)
    model, _ = operated(elsewhere(spec, set(), mixer), donor)
    assert torch.equal(
        tensor(model, "stack.blocks.1.mixing.0.mixer.out.bias"),
        tensor(donor, "stack.blocks.1.mixing.0.mixer.projection.o.bias"),
    )


def test_rows_of_labels_are_no_tokens() -> None:
    spec = with_classifier(shrink(preset("bert-base").spec), 3, "classes")
    donor = randomised(spec)
    model, _ = operated(af.vary(spec, vocab_size=spec.vocab_size + 4), donor)
    assert torch.equal(tensor(model, "heads.classes.table.weight"), tensor(donor, "heads.classes.table.weight"))


PAIRS = [tuple(random.Random(seed).sample(sorted(PRESETS), 2)) for seed in range(200)]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("albert-base", "qwen2.5-32b"),
        *(pytest.param(*pair, marks=[] if i < 8 else pytest.mark.slow) for i, pair in enumerate(PAIRS)),
    ],
)
def test_anything_into_anything(new: str, old: str) -> None:
    spec, donor = shrink(preset(new).spec), randomised(shrink(preset(old).spec))
    model, done = operated(spec, donor)
    state = model.state_dict()
    assert done.keys() <= state.keys()
    for name, (made, numel, _) in done.items():
        assert made.shape == state[name].shape
        assert 0 <= numel <= made.numel()
        assert made.isfinite().all()


def test_both_stacks_of_one() -> None:
    """Rothe et al. 2020: the encoder and the decoder begin as the same, attention to the encoder as attention to oneself."""
    two = shrink(preset("t5-v1.1-small").spec)
    one = two.but(encoder=None)
    one = one.but(stack=one.stack.but(blocks=two.encoder.blocks, embedding=two.stack.embedding))  # type: ignore[union-attr]
    donor = randomised(one)
    model, done = operated(two, donor)
    for part in (
        "mixing.0.mixer.projection.q",
        "mixing.0.around.norm_in",
        "features.0.mixer.down",
        "features.0.around.norm_in",
    ):
        given = tensor(donor, f"stack.blocks.1.{part}.weight")
        for stack in ("encoder", "stack"):
            assert torch.equal(tensor(model, f"{stack}.blocks.1.{part}.weight"), given), (stack, part)
    for part in ("mixer.projection.k", "around.norm_in"):
        given = tensor(donor, f"stack.blocks.0.mixing.0.{part}.weight")
        assert torch.equal(tensor(model, f"stack.blocks.0.memory.0.{part}.weight"), given), part
    assert {name for name in model.state_dict() if name not in done} <= {
        name for name in model.state_dict() if "bucket" in name
    }
    alone, _ = operated(one, model)  # and the decoder alone
    assert torch.equal(
        tensor(alone, "stack.blocks.1.features.0.mixer.up.weight"),
        tensor(donor, "stack.blocks.1.features.0.mixer.up.weight"),
    )


def test_layers_again_and_left_out() -> None:
    spec = af.vary(BASE, n_layers=4)
    donor = randomised(spec)
    deep, _ = operated(af.vary(spec, n_layers=6), donor, read_layers("0-2,1-3", 4))
    for at, of in enumerate([0, 1, 2, 1, 2, 3]):
        path = "stack.blocks.{}.features.0.mixer.up.weight"
        assert torch.equal(tensor(deep, path.format(at)), tensor(donor, path.format(of)))
    longer, done = operated(af.vary(spec, n_layers=5), donor)
    assert {name.split(".")[2] for name in longer.state_dict() if name not in done} == {"4"}


def test_layers_as_they_are_written() -> None:
    assert read_layers("0-2, 2,1~", 3) == [Layer(0), Layer(1), Layer(2), Layer(2), Layer(1, silent=True)]
    assert read_layers("0-11/2", 12) == [Layer(i) for i in (0, 2, 4, 6, 8, 10)]
    assert as_they_stand(3, 2) == [Layer(0), Layer(1), None]
    for text, says in {
        "": "'' names no layers; write numbers and ranges, such as 0-23,8-31",
        "2-1": "'2-1' names no layers",
        "0-1/0": "'0-1/0' names no layers",
        "1,x": "--layers 1,x: 'x' names no layers",
        "-1": "'-1' names no layers",
        "0-3": "there is no layer 3; those given are 0 to 2",
        ",".join(["0-2"] * 400_000): "name fewer",
    }.items():
        with pytest.raises(UsageError) as raised:
            read_layers(text, 3)
        assert says in str(raised.value)
        assert len(str(raised.value)) < 600


def test_tokens_by_their_text() -> None:
    old = Tokenizer.train(["the cat and the hat " * 50, "a cat sat on a mat " * 50], 300)
    new = Tokenizer.train(["the dog and the fog " * 50, "a cat ran on a log " * 50], 300)
    n, given = new.vocab_size + 2, old.vocab_size
    plan = rows_by_text(new, old, n, given)
    spellings = {old.spelling(i): i for i in range(given)}
    kept = 0
    for token in range(n):
        spelling = new.spelling(token)
        if spelling in spellings:
            assert plan.places[token] == spellings[spelling]
            assert token not in plan.means
            kept += 1
        elif spelling is None:
            assert plan.means[token].tolist() == list(range(given))
        else:
            assert plan.means[token].tolist() == old.encode(new.decode([token]))
    assert 258 < kept < new.vocab_size  # bytes, the end of a text, some words


def test_tokens_of_vocabularies_that_are_written_differently() -> None:
    """A word behind a blank is `Ġcat`, `▁a` or `cat`, one that goes on `at` or `##at`: text is what counts."""
    texts = ["the cat and the hat", "a cat sat on a mat"] * 50
    bpe, unigram, wordpiece = Tokenizer.train(texts, 280), Unigram(60).train(texts), WordPiece(60).train(texts)
    for new, old, token, given in (
        (wordpiece, bpe, "cat", "Ġcat"),
        (wordpiece, bpe, "##at", "at"),
        (bpe, wordpiece, "Ġcat", "cat"),
        (bpe, wordpiece, "at", "##at"),
        (unigram, bpe, "▁a", "Ġa"),
        (bpe, unigram, "Ġ", "▁"),
        (wordpiece, bpe, "[SEP]", "<|endoftext|>"),  # what closes a text, whatever it is called
        (unigram, wordpiece, "<unk>", "[UNK]"),
    ):
        (place,), (given_place,) = (
            [i for i in range(each.vocab_size) if each.spelling(i) == spelling]
            for each, spelling in ((new, token), (old, given))
        )
        plan = rows_by_text(new, old, new.vocab_size, old.vocab_size)
        assert plan.places[place] == given_place, (token, given)
    fallback = Tokenizer(llama_like(), {})
    newline = next(i for i in range(fallback.vocab_size) if fallback.spelling(i) == "<0x0A>")
    assert rows_by_text(fallback, bpe, fallback.vocab_size, 280).places[newline] == bpe.encode("\n")[0]
    (mask,) = [i for i in range(wordpiece.vocab_size) if wordpiece.spelling(i) == "[MASK]"]
    assert rows_by_text(wordpiece, bpe, wordpiece.vocab_size, 280).means[mask].tolist() == list(range(280))
