"""`inspect` on models and data of every kind, its command, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import capacity
from anyformer.errors import UsageError
from anyformer.families import preset, with_classifier
from anyformer.families.heads import sentence_embedding
from anyformer.families.prefix import prefixed
from anyformer.inspection.importance import importance
from anyformer.inspection.subject import subject
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.training.prepare import Sources
from tests.cli.running import answer, refused, run, succeeded
from tests.inspection.looked_at import ROW, TEXT, small, tokenizer
from tests.laws.models import randomised


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4, encoding="utf-8")
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    af.save(small("llama3-8b"), tmp_path / "llama", tokenizer=tokenizer())
    return tmp_path / "llama"


@pytest.mark.parametrize(
    ("name", "n_heads", "kinds"),
    [
        ("mixtral-8x7b", 8, {"attention", "experts"}),
        ("deepseek-v3", 8, {"attention", "feed-forward", "experts"}),  # latent attention
        ("qwen3-next-80b-a3b", 4, {"attention", "recurrence", "experts"}),  # every fourth layer looks at tokens
        ("mamba-130m", 0, {"recurrence"}),
        (
            "gemma3n-e4b",
            40,
            {"attention", "feed-forward", "Laurel", "per-layer embeddings"},
        ),  # streams side by side, keys that are lent
        ("reformer-enwik8", 12, {"attention", "feed-forward"}),  # reversible
        ("bert-base", 8, {"attention", "feed-forward"}),  # by the tokens that are hidden
        ("xlnet-base", 8, {"attention", "feed-forward"}),  # two streams, of which one begins as a vector that is learnt
    ],
)
def test_architectures_of_every_kind(name: str, n_heads: int, kinds: set[str], text: Path) -> None:
    model = small(name)
    found = af.inspect(model, text, tokenizer=tokenizer(), seq_len=ROW, tokens=64)
    assert len(found.heads) == n_heads
    assert {branch.kind for layer in found.layers for branch in layer.branches} == kinds
    assert len(found.layers) == model.spec.n_layers
    last = found.layers[-1]
    assert last.ended == pytest.approx(found.loss)
    assert all(head.importance is not None and head.importance > 0 for head in found.heads)
    assert all(0 <= head.entropy <= 1 for head in found.heads)
    assert found.reading is not None
    assert len(found.reading.answers) == model.spec.n_layers + 1
    assert af.evaluate(model, text, tokenizer=tokenizer(), seq_len=ROW).as_json()["objective"] == found.objective


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-8b", ["0 neurons down", "1 neurons down"]),
        (
            "deepseek-v3",
            ["0 neurons down", "1 experts experts.down", "1 neurons shared_expert.down"],
        ),  # beside them, for all tokens
        ("albert-base", ["0 neurons down"]),  # whose second layer is the first again
        ("mamba-130m", []),
    ],
)
def test_neurons_and_experts_by_layer(name: str, expected: list[str], text: Path) -> None:
    found = af.inspect(small(name, n_layers=2), text, tokenizer=tokenizer(), seq_len=ROW, tokens=64)
    assert [f"{each.layer} {each.parts}" for each in found.parts] == [each.rpartition(" ")[0] for each in expected]
    for each, told in zip(found.parts, expected, strict=True):
        end, axis = f".{told.split()[-1]}.weight", {"neurons": "d_ff", "experts": "experts"}[each.parts]
        own = [axes for tensor, axes in found.importance.items() if tensor.endswith(end)]
        of_layer = [axes for axes in own if torch.equal(axes[axis], each.importance)]
        assert len(of_layer) == 1
    assert [(each["n"], each["nine_tenths"]) for each in found.as_json()["parts"]] == [
        (len(each.importance), each.share_with(0.9)) for each in found.parts
    ]
    assert ("how few neurons and experts do most" in str(found)) == bool(expected)


def test_a_translator_by_its_pairs(tmp_path: Path) -> None:
    lines = TEXT.split(", ")
    (tmp_path / "a").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "b").write_text("\n".join(reversed(lines)), encoding="utf-8")
    model = small("transformer-base")
    found = af.inspect(model, source=tmp_path / "a", target=tmp_path / "b", tokenizer=tokenizer())
    stacks = [layer.stack for layer in found.layers]
    assert stacks == ["encoder", "encoder", "decoder", "decoder"]
    assert [layer.ended is None for layer in found.layers] == [True, True, False, False]
    by_stack = {stack: [head for head in found.heads if head.stack == stack] for stack in ("encoder", "decoder")}
    assert len(by_stack["encoder"]) * 2 == len(by_stack["decoder"])  # of itself, and of what the encoder made
    assert [head.distance is None for head in by_stack["decoder"]].count(True) == len(by_stack["encoder"])
    assert found.reading is not None
    assert len({each.queries for each in found.reading.maps}) == 2
    crossed = [each for each in found.reading.maps if each.keys != each.queries]
    assert len(crossed) == model.spec.n_layers
    assert all(each.weights.shape[1:] == (len(each.queries), len(each.keys)) for each in found.reading.maps)


def test_a_decoder_that_sees_a_prefix(text: Path) -> None:
    """Judged by the rest of a text that begins with one; where nothing is a prefix, it is the causal decoder of its weights."""
    causal = small("llama3-8b")
    model = af.build(prefixed(causal.spec)).eval()
    model.load_state_dict(causal.state_dict())
    given, other = (af.inspect(each, text, tokenizer=tokenizer(), seq_len=ROW) for each in (model, causal))
    assert (given.objective, other.objective) == ("PrefixLM", "CausalLM")
    assert [head.induction for head in given.heads] == pytest.approx([head.induction for head in other.heads])


def test_a_classifier_by_its_labels(tmp_path: Path) -> None:
    lines = [json.dumps({"text": word, "label": str(len(word) % 2)}) for word in TEXT.split()]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines), encoding="utf-8")
    spec = af.vary(shrink(preset("bert-base").spec), vocab_size=tokenizer().vocab_size)
    model = randomised(with_classifier(spec, 2))
    model.labels = ("0", "1")
    found = af.inspect(model, tmp_path / "labels.jsonl", tokenizer=tokenizer())
    assert (found.objective, found.labels, found.reading) == ("Classification", len(lines), None)
    assert all(layer.without != 0 for layer in found.layers)


def test_labels_of_words_are_no_tokens(tmp_path: Path) -> None:
    words = TEXT.split()
    line = json.dumps({"tokens": words, "labels": [str(len(word) % 2) for word in words]})
    (tmp_path / "labels.jsonl").write_text(f"{line}\n{line}\n", encoding="utf-8")
    spec = af.vary(shrink(preset("bert-base").spec), vocab_size=tokenizer().vocab_size)
    model = randomised(with_classifier(spec, 2, "token_classes"))
    model.labels = ("0", "1")
    found = af.inspect(model, tmp_path / "labels.jsonl", tokenizer=tokenizer())
    assert (found.objective, found.labels, found.reading) == ("TokenClassification", 2 * len(words), None)


def test_experts_and_neurons_matter_as_differences_say(text: Path) -> None:
    """∂L/∂g of a gate g on what an expert, or a neuron of all experts, writes, by central differences in float64."""
    model = small("mixtral-8x7b").double()
    with subject(model, Sources(text), tokenizer=tokenizer(), seq_len=ROW) as one:
        found = importance(model, one.judging, 64)
        from anyformer.inspection.effects import passes

        batches = list(passes(model, one.judging, 64, apart=True))
        labels = sum(int((each.labels != -100).sum()) for _, each in batches)
        name, axes = next((name, axes) for name, axes in found.items() if "experts" in axes)
        weight = model.get_parameter(name)
        before, step = weight.data.clone(), 1e-4

        def losses(which: Any, factor: float) -> torch.Tensor:
            weight.data.copy_(before)
            weight.data[which] *= factor
            with torch.no_grad():
                return torch.stack([one.judging.objective(by, each).total for by, each in batches])

        for axis, index in (("experts", lambda i: (i,)), ("d_ff", lambda i: (slice(None), slice(None), i))):
            for i in range(2):
                slope = (losses(index(i), 1 + step) - losses(index(i), 1 - step)) / (2 * step)
                assert float(axes[axis][i]) == pytest.approx(float(slope.abs().sum()) / labels, rel=1e-4, abs=1e-9)
        weight.data.copy_(before)
        writing = [
            each.data
            for name, each in model.named_parameters()
            if name.endswith(("o.weight", "experts.down.weight", "terms.0.table.weight"))
        ]
        assert len(writing) == 5
        for i in range(2):  # a feature of the stream, in all that writes it
            both = []
            for factor in (1 + step, 1 - step):
                kept = [each.clone() for each in writing]
                for each in writing:
                    each.select(-1 if each.shape[0] == tokenizer().vocab_size else -2, i).mul_(factor)
                with torch.no_grad():
                    both.append(torch.stack([one.judging.objective(by, rows).total for by, rows in batches]))
                for each, former in zip(writing, kept, strict=True):
                    each.copy_(former)
            slope = (both[0] - both[1]) / (2 * step)
            assert float(found["stack"]["d_model"][i]) == pytest.approx(float(slope.abs().sum()) / labels, rel=1e-4)


def test_it_leaves_a_model_as_it_was_and_says_the_same_again(text: Path) -> None:
    model = small("llama3-8b")
    network: Any = model.get_submodule("stack.blocks.0.sublayers.1.branches.0.mixer")
    network.up = torch.nn.Sequential(network.up, torch.nn.Dropout())  # as adapters have it
    model.train().requires_grad_(False)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    first, again = (af.inspect(model, text, tokenizer=tokenizer(), seq_len=ROW).as_json() for _ in range(2))
    assert first == again
    assert model.training
    assert all(each.grad is None and not each.requires_grad for each in model.parameters())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_no_pass_is_made_twice(text: Path) -> None:
    """Of all, without each of 4 branches and 2 layers, in which it ends early too; by row, the gradient and the maps.

    Two more compute no layer: by what stands between layers, and where it ends behind the last.
    """
    model, rows = small("llama3-8b"), 64 // ROW
    assert (len(model.stack.blocks), model.spec.context) == (2, 64)
    passes = []
    with model.register_forward_hook(lambda *_: passes.append(1)):
        af.inspect(model, text, tokenizer=tokenizer(), seq_len=ROW, tokens=64)
    assert len(passes) == 1 + 4 + 2 + 2 + 2 * rows + 2  # and of a text said twice, of the row that is read


def test_a_text_is_read_beside_data(saved: Path, text: Path) -> None:
    of_data = af.inspect(saved, text, seq_len=ROW)
    both = af.inspect(saved, text, text="why is the oak older", seq_len=ROW)
    alone = af.inspect(saved, text="why is the oak older", seq_len=ROW)
    assert (both.loss, both.heads, both.layers) == (of_data.loss, of_data.heads, of_data.layers)
    assert both.reading is not None
    assert alone.reading is not None
    assert "".join(both.reading.tokens[1:]) == "why is the oak older"
    assert (alone.reading.answers, alone.reading.tokens) == (both.reading.answers, both.reading.tokens)
    assert alone.loss != both.loss


def test_the_command(saved: Path, text: Path, tmp_path: Path) -> None:
    said = succeeded(run("inspect", saved, "--data", text, "--seq-len", ROW, "--device", "cpu")).stdout
    found = af.inspect(saved, text, seq_len=ROW)
    assert said.splitlines()[0] == str(found).splitlines()[0]
    for words in ("what layers do for the loss", "without attention", "heads", "what it would say if it ended there"):
        assert words in said
    page = tmp_path / "inside.html"
    told = answer("inspect", saved, "--data", text, "--seq-len", ROW, "--out", page, "--device", "cpu")
    assert told == json.loads(json.dumps(found.as_json()))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "what is inside a model shows on a text: give --data, --text, or --source and --target"),
        (("--data", "nowhere"), "no corpus at nowhere"),
        (("--text", ""), "empty"),
        (
            ("--data", "{text}", "--source", "{text}", "--target", "{text}"),
            "give either --data, or --source and --target",
        ),
        (
            ("--data", "{text}", "--objective", "mlm"),
            "a text is judged by sft, causal-lm, simpo, orpo, reward-model or grpo where it is named",
        ),
        (("--data", "{text}", "--tokens", "0"), "--tokens"),
    ],
)
def test_refused_in_a_line(options: tuple[str, ...], words: str, saved: Path, text: Path) -> None:
    refused(run("inspect", saved, *(each.format(text=text) for each in options)), words)


def test_a_text_alone_has_no_labels(tmp_path: Path) -> None:
    spec = af.vary(shrink(preset("bert-base").spec), vocab_size=tokenizer().vocab_size)
    with pytest.raises(UsageError, match="judged by labels, and a text alone has none; give --data"):
        af.inspect(build(with_classifier(spec, 2)), tokenizer=tokenizer(), text=TEXT)


@pytest.mark.parametrize("name", ["bert-base", "llama3-8b"])
def test_what_makes_vectors_is_inspected_by_pairs(name: str, text: Path) -> None:
    model = build(small(name).spec.but(heads=(sentence_embedding(),), ahead=()))
    with pytest.raises(UsageError, match=r"makes vectors of texts.* give --source and --target"):
        af.inspect(model, text, tokenizer=tokenizer())
    text.write_text(TEXT.replace(" ", "\n"), encoding="utf-8")
    found = af.inspect(model, source=text, target=text, tokenizer=tokenizer())
    assert (found.objective, len(found.layers), found.reading) == ("Contrastive", 2, None)


def test_weights_in_few_bits_are_refused(saved: Path, text: Path) -> None:
    model, _ = af.load(saved, dtype="int8")
    with pytest.raises(UsageError, match="weights in few bits, or below adapters, have no gradient"):
        af.inspect(model, text, tokenizer=tokenizer(), seq_len=ROW)


@pytest.mark.parametrize("name", ["llama3-8b", "bert-base", "transformer-base"])
def test_rows_whose_maps_no_memory_has_room_for_are_refused(
    name: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is computed; 5 maps of all heads in float32, by measuring."""
    model = small(name)
    given: dict[str, Any] = {"data": text, "seq_len": 40}
    if name == "transformer-base":
        given = {"source": text, "target": text}
    mixer: Any = model.spec.stack.blocks[0].sublayers[0].branches[0].mixer
    n = 40 if name != "transformer-base" else len(tokenizer().encode(TEXT * 4)) + 1
    needed = 5 * int(mixer.projection.n_heads) * n * n * 4
    monkeypatch.setattr(capacity, "free_nbytes", lambda device: needed - 1)
    passes: list[int] = []
    with model.register_forward_hook(lambda *_: passes.append(1)):
        with pytest.raises(
            UsageError, match=rf"^where heads look in rows of {n} tokens needs .*; give a smaller --seq-len"
        ):
            af.inspect(model, **given, tokenizer=tokenizer(), tokens=64)
        assert passes == []
    monkeypatch.setattr(capacity, "free_nbytes", lambda device: needed)
    assert af.inspect(model, **given, tokenizer=tokenizer(), tokens=64).heads
    states = small("mamba-130m")  # which has no maps
    monkeypatch.setattr(capacity, "free_nbytes", lambda device: 0)
    assert not af.inspect(states, text, tokenizer=tokenizer(), seq_len=40, tokens=64).heads


def test_figures_are_means_over_tokens_whatever_rows_they_stand_in(tmp_path: Path) -> None:
    """Two texts of unlike lengths, in rows of both, padded or packed, beside each of them alone."""
    model = small("llama3-8b", n_layers=2)
    texts = {"a": TEXT, "b": "no owl knows why", "c": "it is so quiet there; the oak is older"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    together = af.inspect(model, tmp_path, tokenizer=tokenizer(), seq_len=64)
    alone = [af.inspect(model, tokenizer=tokenizer(), text=text, seq_len=64) for text in texts.values()]
    n = sum(each.labels for each in alone)
    assert together.labels == n

    def mean(figure: Any) -> Any:
        return pytest.approx(sum(each.labels * figure(each) for each in alone) / n, rel=1e-4)

    assert together.loss == mean(lambda each: each.loss)
    for i in range(2):
        assert together.layers[i].turned == mean(lambda each, i=i: each.layers[i].turned)
        assert together.layers[i].ended == mean(lambda each, i=i: each.layers[i].ended)
        assert together.heads[4 * i].itself == mean(lambda each, i=i: each.heads[4 * i].itself)
        assert together.heads[4 * i].first == mean(lambda each, i=i: each.heads[4 * i].first)


def test_importance_is_a_mean_over_labels_of_rows(tmp_path: Path) -> None:
    """Of two rows, the shorter one padded."""
    model = small("llama3-8b", n_layers=1)
    texts = {"a": TEXT, "b": TEXT[: len(TEXT) // 2]}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    n_tokens = len(tokenizer().encode(TEXT)) + 1
    together = af.inspect(model, tmp_path, tokenizer=tokenizer(), seq_len=n_tokens).importance
    alone = [af.inspect(model, tokenizer=tokenizer(), text=text) for text in texts.values()]
    n = sum(each.labels for each in alone)
    for name, axes in together.items():
        for axis, matters in axes.items():
            mean = sum(each.labels * each.importance[name][axis] for each in alone) / n
            torch.testing.assert_close(matters, mean, rtol=1e-3, atol=1e-7)
