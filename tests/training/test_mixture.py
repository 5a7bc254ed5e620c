"""A run on a mixture: named by options, by a file or by its recipe; refused; gone on with."""

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.errors import AnyformerError, CheckpointError, SpecError, UsageError
from anyformer.recipe import Mixture, Recipe, Stage, TextSource, dumps, loads, mixture_of
from anyformer.training.data.mixed import MixedText
from anyformer.training.run import RunOptions

SIZES: dict[str, Any] = {"vocab_size": 280, "tokens": 512, "batch_tokens": 64, "seq_len": 16, "device": "cpu"}
MODEL = af.shrink(af.preset("llama2"))


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "a").mkdir()
    for i in range(20):
        (tmp_path / "a" / f"{i}.txt").write_text("aaaa bbbb cccc " * 12)
    lines = [json.dumps({"text": "dddd eeee ffff " * 6}) + "\n" for _ in range(30)]
    (tmp_path / "b.jsonl").write_text("".join(lines))
    return str(tmp_path / "a"), str(tmp_path / "b.jsonl")


def prepared(data: Any, **options: Any) -> Any:
    return af.prepare_training(MODEL, data, **{**SIZES, **options})


def test_ways_to_name_it(texts: tuple[str, str], tmp_path: Path) -> None:
    a, b = texts
    wanted = Mixture(texts=(TextSource(text=a, weight=0.75), TextSource(text=b, weight=0.25)))
    (tmp_path / "mix.yaml").write_text(
        f"mixture: 1\ntexts:\n- {{text: {a}, weight: 0.75}}\n- {{text: {b}, weight: 0.25}}\n"
    )
    recipe = Recipe(mixture=wanted)
    assert loads(dumps(recipe)) == recipe
    (tmp_path / "recipe.yaml").write_text(dumps(recipe))
    ways: list[tuple[Any, dict[str, Any]]] = [
        ([f"{a}=0.75", f"{b}=0.25"], {}),
        (tmp_path / "mix.yaml", {}),
        (wanted, {}),
        (None, {"recipe": recipe}),
        (None, {"recipe": tmp_path / "recipe.yaml"}),
    ]
    found = [prepared(data, **options) for data, options in ways]
    assert {each.recipe.mixture for each in found} == {wanted}
    assert len({each.data.fingerprint for each in found}) == 1
    assert prepared(a, recipe=recipe).recipe.mixture is None  # what is named wins


def test_the_share_of_each_text(texts: tuple[str, str]) -> None:
    """By what is in the rows themselves: letters of the one text, or of the other."""
    made = prepared([f"{texts[0]}=3", f"{texts[1]}=1"])
    assert isinstance(made.data, MixedText)
    assert made.data.tokenizer is not None
    feed, of_a, rows = made.data.feed(made.recipe), 0, 0
    for _ in range(10):
        batch = next(feed)
        for ids, mask in zip(batch.input_ids, batch.document > 0, strict=True):
            text = made.data.tokenizer.decode(ids[mask].tolist())
            assert ("a" in text or "b" in text or "c" in text) != ("d" in text or "e" in text or "f" in text)
            of_a += "a" in text or "b" in text or "c" in text
            rows += 1
    assert (of_a, rows) == (30, 40)


def test_validation_has_documents_of_each(texts: tuple[str, str]) -> None:
    made = prepared([f"{texts[0]}=9", f"{texts[1]}=1"], validation=0.2)
    held_out = made.data.held_out
    text = "".join(made.data.tokenizer.decode(held_out.document(i).tolist()) for i in range(held_out.n_documents))
    assert "aaaa" in text
    assert "dddd" in text


def test_a_run_goes_on_where_it_was(texts: tuple[str, str]) -> None:
    """From the state that a checkpoint holds, in the middle of a curriculum."""
    stages = (Stage(share=0.5), Stage(weights=(0.2, 0.8)))
    made = prepared(Mixture(texts=tuple(TextSource(text=each, epochs=9) for each in texts), stages=stages))
    feed, states, batches = made.data.feed(made.recipe), [], []
    for _ in range(8):
        states.append(json.dumps(dict(feed.state())))
        batches.append(next(feed))
    for at, state in enumerate(states):
        other = made.data.feed(made.recipe)
        other.restore(json.loads(state))
        assert (next(other).input_ids == batches[at].input_ids).all()


@pytest.mark.parametrize(
    ("stage", "goes_on"), [(Stage(share=0.5), False), (Stage(steps=4), True)], ids=["share", "steps"]
)
def test_a_longer_run_has_read_what_it_would_have(
    texts: tuple[str, str], tmp_path: Path, stage: Stage, goes_on: bool
) -> None:
    """Stages by share end later in a longer run: rows that were read would come again, and others never."""
    given = Mixture(texts=tuple(TextSource(text=each) for each in texts), stages=(stage, Stage(weights=(0.2, 0.8))))
    how: dict[str, Any] = {"out": tmp_path / "run", "options": RunOptions(plan=False, validations=0)}
    prepared(given, **how).run()
    longer = prepared(given, **how, tokens=2 * SIZES["tokens"])
    if goes_on:
        assert longer.run().result.steps[-1].step == 16
    else:
        with pytest.raises(
            CheckpointError, match="its mixture had other weights in its first 8 steps than one of 16 has"
        ):
            longer.run()
        assert prepared(given, **how).run().result.steps[-1].step == 8


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("{a}=0.5", "{b}"), UsageError, "--data .*b.jsonl has no weight; of several texts each has one"),
        (("{a}=0", "{b}=0"), UsageError, "weights that are all 0"),
        (("{a}=1", "{a}=2"), UsageError, r"names .*a more than once; give it once"),
        (("{a}=-1", "{b}=1"), UsageError, "weight = -1.0 must be at least 0"),
        (("{a}=nan", "{b}=1"), UsageError, "must be a finite number"),
        (("{a}=1", "{a}-not=1"), AnyformerError, "no corpus at .*-not"),
    ],
)
def test_what_is_refused(given: tuple[str, ...], error: type[Exception], message: str, texts: tuple[str, str]) -> None:
    with pytest.raises(error, match=message):
        prepared([each.format(a=texts[0], b=texts[1]) for each in given])


def test_what_a_mixture_is_not_for(texts: tuple[str, str]) -> None:
    mixture = [f"{texts[0]}=1", f"{texts[1]}=1"]
    with pytest.raises(SpecError, match=r"mixture .*is of plain texts, and Classification reads labelled"):
        prepared(mixture, objective="classification")
    with pytest.raises(SpecError, match="no rows that go on, which memory needs"):
        prepared(mixture, memory=16)
    with pytest.raises(UsageError, match="give either --data, or --source and --target"):
        prepared(mixture, source=texts[1], target=texts[1])
    short = prepared(Mixture(texts=tuple(TextSource(text=each, epochs=0.1) for each in texts)))
    with pytest.raises(AnyformerError, match="the texts are used up at step"):
        short.plan()
    recipe = Recipe(mixture=mixture_of(mixture))
    with pytest.raises(UsageError, match="which `train` alone reads"):
        af.compare([MODEL], texts[0], recipe=recipe, out="never")


def test_a_path_with_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "lr=0.5").write_text("a text")
    assert mixture_of([tmp_path / "lr=0.5"]) is None
    assert mixture_of(["a=b.txt"]) is None
    found = mixture_of([f"{tmp_path}/lr=0.5=0.25"])
    assert found is not None
    assert found.texts == (TextSource(text=f"{tmp_path}/lr=0.5", weight=0.25),)
