"""Objectives that restore a text: what cannot be trained so, what hides nothing, what a vocabulary lacks; recipes of them."""

from typing import Any

import pytest

from anyformer import layers
from anyformer.errors import AnyformerError, SpecError, TextError, UsageError
from anyformer.families.heads import sentence_embedding
from anyformer.recipe import (
    UL2,
    CausalLM,
    Denoiser,
    Denoising,
    FillInTheMiddle,
    MaskedLM,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Recipe,
    Seq2Seq,
    SpanCorruption,
    dumps,
    loads,
)
from anyformer.spec import HeadSpec, ModelSpec, TableSpec, Vocab
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run import RunOptions, train
from tests.training.models import decoder, encoder_decoder
from tests.training.noisy import plain_tokenizer, text_data
from tests.training.test_objectives import CPU
from tests.training.test_objectives_noise import ALL, ENCODER, XLNET, by_kind, fitting, recipe

CLASSES = HeadSpec(name="classes", table=TableSpec(rows=Vocab(2)))


@pytest.mark.parametrize(
    ("objective", "spec", "says"),
    [
        (MaskedLM(), decoder(), "its masks are causal"),
        (MaskedLM(), encoder_decoder(), "it is an encoder and a decoder; use SpanCorruption"),
        (MaskedLM(), ENCODER.but(heads=()), "it has no head that predicts tokens"),
        (MaskedLM(), ENCODER.but(heads=(CLASSES,)), "its first head, 'classes', does not predict tokens"),
        (
            MaskedLM(),
            ENCODER.but(heads=(sentence_embedding(),)),
            "makes vectors of texts.* give --source and --target, or",
        ),
        (
            CausalLM(),
            decoder().but(heads=(sentence_embedding(),)),
            "makes vectors of texts.* give --source and --target, or",
        ),
        (CausalLM(), decoder().but(heads=(CLASSES,)), "its first head, 'classes', does not predict tokens"),
        (CausalLM(), decoder().but(heads=()), "it has no head that predicts tokens"),
        (PermutedLM(), ENCODER, "it has no second stream"),
        (PermutedLM(), XLNET.but(heads=()), "it has no head that predicts tokens"),
        (
            CausalLM(),
            XLNET,
            r"its TwoStreams mask lets a token see .* use PermutedLM \(--objective permuted-lm\), or a causal",
        ),
        (CausalLM(), ENCODER, r"use MaskedLM \(--objective masked-lm\), or a causal mask"),
        (SpanCorruption(), decoder(), "it has no encoder"),
        (UL2(), ENCODER, "it has no encoder"),
        (Denoising(), encoder_decoder(cross=False), "never reads the encoder"),
        (PrefixLM(), encoder_decoder(layers.Everything()), "the Everything mask of its decoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else by_kind(value),
)
def test_what_an_architecture_cannot_do_is_refused(objective: ObjectiveSpec, spec: ModelSpec, says: str) -> None:
    with pytest.raises(UsageError, match=f"{objective.kind} does not go with this architecture: .*{says}"):
        objective_of(objective, spec)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (recipe(MaskedLM(rate=0.001)), UsageError, "a rate of 0.001 hides nothing in rows of 48 tokens"),
        (recipe(PermutedLM(share=0.01)), UsageError, "PermutedLM with a rate of 0.01 hides nothing"),
        (recipe(SpanCorruption(rate=0.01)), UsageError, "hides nothing"),
        (recipe(Denoising(permute_sentences=False, infill_rate=0.001)), UsageError, "hides nothing"),
        (
            recipe(SpanCorruption(rate=0.5, mean_length=1), seq_len=400, batch_tokens=400),
            TextError,
            "needs 201 sentinels for rows of this length and the tokenizer has 100",
        ),
        (recipe(Seq2Seq()), UsageError, "Seq2Seq reads pairs of texts"),
    ],
    ids=lambda value: by_kind(value.objective) if isinstance(value, Recipe) else None,
)
def test_noise_that_hides_nothing_is_refused(given: Recipe, error: type[AnyformerError], says: str) -> None:
    with pytest.raises(error, match=says):
        train(fitting(given.objective), given, text_data(), options=RunOptions(device=CPU))


@pytest.mark.parametrize(
    ("objective", "token"),
    [
        *[(MaskedLM(), "<mask>"), (Denoising(), "<mask>"), (SpanCorruption(), "<extra_id_0>"), (UL2(), "<extra_id_0>")],
        (FillInTheMiddle(), r"<\|fim_prefix\|>, <\|fim_suffix\|>, <\|fim_middle\|>"),
    ],
    ids=by_kind,
)
def test_a_vocabulary_without_the_tokens_is_refused(objective: ObjectiveSpec, token: str) -> None:
    with pytest.raises(TextError, match=f"no special token {token}, which {objective.kind} needs; train one with"):
        train(fitting(objective), recipe(objective), text_data(plain_tokenizer()), options=RunOptions(device=CPU))


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (MaskedLM, {"rate": 0.0}, "must be above 0 and below 1"),
        (FillInTheMiddle, {"rate": 0.0}, "must be above 0"),
        (FillInTheMiddle, {"spm": 1.5}, "spm"),
        (MaskedLM, {"mask_share": 0.9, "random_share": 0.2}, "more than 1"),
        (SpanCorruption, {"mean_length": 0.5}, "must be at least 1"),
        (Denoising, {"permute_sentences": False, "infill_rate": 0.0}, "only copied"),
        (UL2, {"denoisers": ()}, "name one at least"),
        (Denoiser, {"mode": "S", "rate": 0.6}, "at most 0.5"),
    ],
)
def test_fields_out_of_their_range_are_refused(kind: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        kind(**fields)


@pytest.mark.parametrize("objective", ALL, ids=by_kind)
def test_recipes_carry_all_fields(objective: ObjectiveSpec) -> None:
    assert loads(dumps(recipe(objective))) == recipe(objective)


def test_an_architecture_has_its_usual_objective() -> None:
    assert [usual(spec).kind for spec in (decoder(), ENCODER, XLNET, encoder_decoder())] == [
        "CausalLM",
        "MaskedLM",
        "PermutedLM",
        "SpanCorruption",
    ]
    assert usual(encoder_decoder(), "pairs") == Seq2Seq()
