"""Speculative decoding: the greedy text is that of plain decoding, the distribution that of full passes written out."""

import copy
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from scipy.stats import chisquare

import anyformer as af
from anyformer.errors import InputError, UsageError
from anyformer.families import preset
from anyformer.families.deepseek import predicting_further
from anyformer.generation import (
    DraftModel,
    Guessing,
    OwnModules,
    PromptLookup,
    Sampling,
    SpeculativeDecoding,
    generate_ids,
    generate_text,
)
from anyformer.generation.guesses import Guessed, Guesser, Prompt
from anyformer.generation.speculative import checked
from anyformer.layers import CapacityFactor, DynamicNTK, LSHAttentionSpec, MoESpec, RotarySpec, RouterSpec
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import Length, ModelSpec, Vocab, cached_calls
from anyformer.text import Tokenizer
from tests.cli.running import outcome
from tests.generation.test_decode import LOWERED, decoder, lowered, windowed
from tests.generation.test_text import TEXTS, sized
from tests.laws.models import WRITERS, ids_for, randomised
from tests.laws.tolerance import in_float64
from tests.laws.weights import edited
from tests.sample import is_one_of_few, sampled

NEW = 14
STATE = "state, which cannot take wrong guesses back"


def grown(model: Transformer, ids: torch.Tensor, way: Guessing, **options: Any) -> tuple[list[list[int]], list[int]]:
    """Return the new ids by row, and the passes by row."""
    steps = SpeculativeDecoding(model, ids, options.pop("mask", None), way, **options)
    found: list[list[int]] = [[] for _ in ids]
    for step in steps:
        for row, token in step.items():
            found[row].append(token)
    return found, steps.passes


def like(model: Transformer, by: float) -> Transformer:
    """Return a model whose weights are nearly those of another, so that some of its guesses are right."""
    generator = torch.Generator().manual_seed(3)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for w in other.parameters():
            if w.is_floating_point():  # a table of tokens' experts is not
                w *= 1 + by * torch.randn(w.shape, generator=generator, dtype=w.dtype)
    return other


def holds_state(spec: ModelSpec) -> bool:
    """Return whether a layer of the decoder keeps a state instead of tokens."""
    return any(kept.how == "state" for kept in cached_calls(spec))


def unlimited(spec: ModelSpec) -> ModelSpec:
    """Return the model without what limits how many tokens of a pass an expert takes."""
    return edited(spec, MoESpec, lambda mixture: mixture.but(capacity=None))


@in_float64()
@pytest.mark.parametrize("spec", sampled(WRITERS, is_one_of_few))
def test_the_greedy_text_of_every_writer(spec: ModelSpec) -> None:
    model = randomised(unlimited(spec)).double()
    ids = ids_for(spec, 1, 9)
    options: dict[str, Any] = {"max_new_tokens": NEW}
    if spec.encoder:
        options["decoder_input_ids"] = ids_for(spec, 1, 2, seed=4)
    ways = [PromptLookup(3), DraftModel(like(model, 0.02), 3), *([OwnModules.of(spec)] if spec.ahead else [])]
    hashed = any(isinstance(value, LSHAttentionSpec) for value in spec.nested())
    if hashed or holds_state(spec):
        for way in ways:
            with pytest.raises(InputError, match="hashed attention" if hashed else STATE):
                grown(model, ids, way, **options)
        return
    expected = generate_ids(model, ids, **options).tolist()
    for way in ways:
        assert grown(model, ids, way, **options)[0] == expected, way


@in_float64()
@pytest.mark.parametrize("n_windowed", [4, 16])
def test_guesses_that_fall_in_rings_that_have_come_round(n_windowed: int) -> None:
    model = randomised(windowed(n_windowed, alternating=True)).double()
    ids = ids_for(model.spec, 1, 12)
    expected = generate_ids(model, ids, max_new_tokens=20).tolist()
    for by in (0.05, 1.0):
        assert grown(model, ids, DraftModel(like(model, by), 5), max_new_tokens=20)[0] == expected


@in_float64()
@pytest.mark.parametrize(
    ("dynamic", "n_prompt", "n_new", "exact"),
    [
        (False, 24, 9, True),
        (False, 24, 10, False),
        (False, 32, 1, True),
        (False, 33, 20, True),
        (True, 24, 9, True),
        (True, 24, 10, False),
        (True, 33, 1, True),
        (True, 33, 2, False),
    ],
)
def test_rotations_by_length_that_a_wrong_guess_would_change(
    dynamic: bool, n_prompt: int, n_new: int, exact: bool
) -> None:
    """LongRoPE has one rotation up to 32 tokens and one beyond, dynamic NTK one for each length beyond."""
    spec = shrink(preset("phi4-mini"))
    if dynamic:
        scaling = DynamicNTK(factor=4.0, original_context=Length(32))
        spec = edited(spec, RotarySpec, lambda rotary: rotary.but(scaling=scaling))
    model = randomised(spec).double()
    ids = ids_for(spec, 1, n_prompt)
    for way in (PromptLookup(6), DraftModel(like(model, 0.05), 4)):
        if exact:
            expected = generate_ids(model, ids, max_new_tokens=n_new).tolist()
            assert grown(model, ids, way, max_new_tokens=n_new)[0] == expected
        else:
            with pytest.raises(InputError, match=f"from {n_prompt} to {n_prompt + n_new - 1} tokens"):
                grown(model, ids, way, max_new_tokens=n_new)


@in_float64()
def test_rows_of_a_batch_are_padded_end_and_stop_by_themselves() -> None:
    model = randomised(decoder()).double()
    ids, mask = ids_for(model.spec, 3, 8), torch.ones(3, 8, dtype=torch.long)
    mask[1, :5] = 0
    expected = generate_ids(model, ids, mask, max_new_tokens=NEW).tolist()
    end = expected[0][4]
    cut = [row[: row.index(end) + 1] if end in row else row for row in expected]
    options = {"mask": mask, "max_new_tokens": NEW, "closing_ids": (end,)}
    assert grown(model, ids, DraftModel(like(model, 0.03), 4), **options)[0] == cut
    assert grown(model, ids, PromptLookup(5), **options)[0] == cut


def test_a_draft_that_is_always_right_takes_a_pass_for_its_guesses_and_one_more() -> None:
    model = randomised(decoder()).double()
    ids = ids_for(model.spec, 2, 5)
    for most, new, passes in ((1, 10, 5), (3, 10, 3), (4, 11, 3), (20, 10, 1)):
        assert grown(model, ids, DraftModel(model, most), max_new_tokens=new)[1] == [passes, passes]


def test_look_up_finds_what_followed_before() -> None:
    """After 1 2 3 came 7 8 9; then the longest match counts, and of equal ones the latest."""
    prompt = Prompt(torch.tensor([[0]]), None, 9)
    generator = torch.Generator()

    def guess(text: list[int], n: int, ngram: int = 3) -> list[int]:
        guesser = PromptLookup(n, ngram).begin(randomised(decoder()), prompt)
        whole = guesser(text, None, n, Sampling(), generator).token_ids
        again = PromptLookup(n, ngram).begin(randomised(decoder()), prompt)  # told of it token by token
        by_token = [again(text[: i + 1], None, n, Sampling(), generator).token_ids for i in range(len(text))]
        assert by_token[-1] == whole
        return whole

    assert guess([1, 2, 3, 7, 8, 9, 4, 1, 2, 3], 3) == [7, 8, 9]
    assert guess([1, 2, 3, 7, 8, 9, 4, 1, 2, 3], 2) == [7, 8]
    assert guess([1, 2, 3, 7, 5, 3, 6, 1, 2, 3], 2) == [7, 5]
    assert guess([1, 2, 3, 7, 5, 3, 6, 1, 2, 3], 2, ngram=1) == [6, 1]
    assert guess([5, 3, 4, 5, 3, 6, 3], 1) == [6]
    assert guess([1, 2, 3], 4) == []
    assert guess([4, 4, 4], 4) == [4]


@in_float64()
@pytest.mark.parametrize("hashed", [False, True])
def test_own_modules_guess_what_they_say_of_whole_rows(hashed: bool) -> None:
    """Also where routers go by the tokens' ids."""
    spec = next(spec for spec in WRITERS.values() if spec.ahead)
    assert any(isinstance(value, RouterSpec) for value in spec.ahead[0].nested())
    if hashed:
        rows = Vocab(spec.vocab_size)
        spec = edited(spec, RouterSpec, lambda each: RouterSpec(n_experts=each.n_experts, top_k=1, hashed=rows))
    spec = spec.but(ahead=(spec.ahead[0],) * 3)
    model = randomised(unlimited(spec)).double()
    for n_prompt in (1, 2, 6):
        text = ids_for(spec, 1, n_prompt + 5)[0].tolist()
        guesser = OwnModules(3).begin(model, Prompt(torch.tensor([text[:n_prompt]]), None, 20))
        read, grow = 0, [n_prompt + 1, n_prompt + 2, n_prompt + 5]
        for end in grow:
            with torch.inference_mode():
                hidden = model(torch.tensor([text[: end - 1]])).last_hidden_state[:, read:]
                found = guesser(text[:end], hidden, 3, Sampling(), torch.Generator()).token_ids
            read, expected = end - 1, list(text[:end])
            for k in range(3):
                with torch.no_grad():
                    out = model(torch.tensor([[*expected, 0, 0, 0]]), output_ahead=True)
                    expected.append(int(model.head()(out.ahead[k][:, end - 2]).argmax()))
            assert found == expected[end:]


@in_float64()
@pytest.mark.parametrize("n", [1, 3])
def test_own_modules_guess_up_to_the_last_learned_position(n: int) -> None:
    spec = predicting_further(shrink(preset("gpt2")), 3)
    model, limit = randomised(spec).double(), learned_positions(spec.stack)
    assert limit is not None
    ids = ids_for(spec, 1, limit - 10)
    expected = generate_ids(model, ids, max_new_tokens=10).tolist()
    assert grown(model, ids, OwnModules(n), max_new_tokens=10)[0] == expected


@in_float64()
def test_who_guesses_is_told_what_the_model_made_of_each_token_that_stands() -> None:
    model, told = randomised(decoder()).double(), list[torch.Tensor]()

    class Listening:
        follows: ClassVar[bool] = True
        most = 3
        text: Sequence[int] = ()

        def begin(self, model: Transformer, prompt: Prompt) -> Guesser:
            inner = DraftModel(like(model, 0.05), 3).begin(model, prompt)

            def guess(
                text: Sequence[int], hidden: torch.Tensor | None, n: int, sampling: Sampling, generator: torch.Generator
            ) -> Guessed:
                told.extend([] if hidden is None else [hidden])
                self.text = [*text]
                return inner(text, hidden, n, sampling, generator)

            return guess

    way = Listening()
    passes = grown(model, ids_for(model.spec, 1, 5), way, max_new_tokens=12)[1][0]
    assert passes < 12, "some guesses should stand, and some fall"
    with torch.no_grad():
        whole = model(torch.tensor([[*way.text][:-1]])).last_hidden_state
    torch.testing.assert_close(torch.cat(told, 1), whole)


def test_the_first_token_of_a_checked_guess_has_the_model_s_probability() -> None:
    generator = torch.Generator().manual_seed(5)
    p = torch.tensor([[0.5, 0.2, 0.0, 0.3], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    q = torch.tensor([[0.1, 0.3, 0.4, 0.2], [0.4, 0.1, 0.4, 0.1]], dtype=torch.float64)
    for drawn in (q, None):
        firsts, seconds = Counter[int](), Counter[int]()
        for _ in range(1500):
            ids = [1, 3] if drawn is None else torch.multinomial(q, 1, generator=generator)[:, 0].tolist()
            new = checked(Guessed(ids, drawn), p, generator)
            firsts[new[0]] += 1
            if len(new) > 1:
                seconds[new[1]] += 1
        assert 2 not in firsts
        n, m = firsts.total(), seconds.total()
        assert chisquare([firsts[i] for i in (0, 1, 3)], [0.5 * n, 0.2 * n, 0.3 * n]).pvalue > 1e-3
        assert chisquare([seconds[i] for i in range(4)], [0.1 * m, 0.2 * m, 0.3 * m, 0.4 * m]).pvalue > 1e-3


@pytest.mark.parametrize(
    "kind", ["draft", pytest.param("lookup", marks=pytest.mark.slow), pytest.param("own", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("penalised", [False, True])
def test_drawn_texts_have_the_model_s_distribution(kind: str, penalised: bool) -> None:
    """Three tokens of a vocabulary of three, their probabilities by full passes over all 27."""
    spec = sized(decoder(), 3)
    model = randomised(predicting_further(spec, 2) if kind == "own" else spec).double()
    sampling, prompt, n = Sampling(3.0, top_k=3, top_p=0.98, **(LOWERED if penalised else {})), [0, 1, 2, 0, 1], 250  # type: ignore[arg-type]
    expected = {}
    for new in product(range(3), repeat=3):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *new]])).logits[0, len(prompt) - 1 : -1]
        before = [[*prompt, *new[:i]] for i in range(3)]
        for row, ids in zip(logits, before, strict=True):
            row.copy_(torch.tensor([lowered(x, i, ids, len(prompt), sampling) for i, x in enumerate(row.tolist())]))
        kept = sampling.probabilities(logits)
        expected[new] = float(torch.stack([kept[i, token] for i, token in enumerate(new)]).prod())
    ways = {
        "draft": lambda: DraftModel(like(model, 0.4), 2),
        "lookup": lambda: PromptLookup(2),
        "own": lambda: OwnModules(2),
    }
    found, passes = grown(
        model, torch.tensor([prompt]).expand(n, -1), ways[kind](), max_new_tokens=3, sampling=sampling, seed=1
    )
    assert sum(passes) < 3 * n, "some guesses should stand"
    counts = Counter(map(tuple, found))
    assert all(expected[new] > 0 for new in counts)
    likely = [new for new, p in expected.items() if p * n >= 5]
    rest = 1 - sum(expected[new] for new in likely)
    observed = [counts[new] for new in likely]
    wanted = [expected[new] * n for new in likely]
    if rest * n >= 1:
        observed, wanted = [*observed, n - sum(observed)], [*wanted, rest * n]
    assert chisquare(observed, [w * sum(observed) / sum(wanted) for w in wanted]).pvalue > 1e-3


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    model = randomised(decoder())
    ids = ids_for(model.spec, 1, 4)
    encoder_decoder = next(spec for spec in WRITERS.values() if spec.encoder)
    with_state = next(s for s in WRITERS.values() if holds_state(s))
    limited = sized(shrink(preset("gpt2")), model.spec.vocab_size)
    mixture = next(s for name, s in WRITERS.items() if "mixtral" in name)
    capacity = edited(mixture, MoESpec, lambda moe: moe.but(capacity=CapacityFactor(factor=2.0)))
    same = sized(with_state, model.spec.vocab_size)
    for way, message in (
        (
            lambda: DraftModel(randomised(sized(decoder(), 17))),
            r"the draft has 17 tokens and the model \d+; take a draft",
        ),
        (lambda: DraftModel(randomised(sized(encoder_decoder, model.spec.vocab_size))), "one has an encoder"),
        (lambda: DraftModel(randomised(same)), f"the draft has layers with a {STATE}"),
        (lambda: DraftModel(randomised(limited)), "the draft cannot go along: a prompt of 4 tokens"),
        (lambda: DraftModel(model, 0), "most = 0"),
        (lambda: PromptLookup(0), "most = 0"),
        (lambda: PromptLookup(ngram=0), "ngram = 0"),
        (lambda: OwnModules.of(model.spec), "no modules that predict further"),
        (lambda: OwnModules(2), "no modules that predict further"),
    ):
        with pytest.raises(InputError, match=message):
            SpeculativeDecoding(model, ids, None, way(), max_new_tokens=2000)
    with pytest.raises(InputError, match="the model has experts of a capacity"):
        SpeculativeDecoding(randomised(capacity), ids_for(capacity, 1, 3), None, PromptLookup(), max_new_tokens=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 320)


def test_texts_and_stop_strings(tokenizer: Tokenizer) -> None:
    model = randomised(sized(decoder(), tokenizer.vocab_size)).double()
    prompts = ["the fox", "the fox the fox the fox"]
    plain = generate_text(model, tokenizer, prompts, max_new_tokens=30)
    stop = plain[0].text[3:6]
    for way in (DraftModel(like(model, 0.02)), PromptLookup(6)):
        found = generate_text(model, tokenizer, prompts, max_new_tokens=30, guessing=way)
        assert [(each.text, each.token_ids) for each in found] == [(each.text, each.token_ids) for each in plain]
        assert all(each.passes and each.passes <= 30 for each in found)
        stopped = generate_text(model, tokenizer, prompts[:1], max_new_tokens=30, guessing=way, stop=[stop])
        assert (stopped[0].text, stopped[0].ended_by) == (plain[0].text[:3], "stop")
    with pytest.raises(InputError, match="leave one of them out"):
        generate_text(model, tokenizer, prompts, guessing=PromptLookup(), cache=False)
    (text,) = af.generate(model, tokenizer, prompts[:1], max_new_tokens=30, lookup=4)
    assert text == plain[0].text
    assert af.generate(model, tokenizer, prompts[0], max_new_tokens=30, draft=model, draft_tokens=3) == text
    with pytest.raises(UsageError, match="take one of them"):
        af.generate(model, tokenizer, prompts[0], draft=model, lookup=3)


run = partial(outcome, "generate")


def test_the_command(tokenizer: Tokenizer, tmp_path: Path) -> None:
    spec = sized(decoder(), tokenizer.vocab_size)
    af.save(randomised(spec), tmp_path / "model", tokenizer=tokenizer)
    af.save(randomised(spec, seed=1), tmp_path / "draft", tokenizer=tokenizer)
    other = Tokenizer.train(["an utterly different text, of other words"], 320)
    af.save(randomised(sized(decoder(), other.vocab_size)), tmp_path / "other", tokenizer=other)
    given = ["--model", str(tmp_path / "model"), "the fox", "--max-new-tokens", "20", "--device=cpu"]
    status, text, stderr = run(*given)
    assert (status, stderr) == (0, "")
    for options in (["--lookup", "4"], ["--draft", str(tmp_path / "draft"), "--draft-tokens", "2"]):
        status, stdout, stderr = run(*given, *options)
        assert (status, stdout) == (0, text)
        assert stderr.startswith("20 tokens in ")
        assert stderr.endswith(" a pass\n")
    for options, words in (
        (["--draft", str(tmp_path / "other")], "the draft has another vocabulary: its token 2"),
        (["--ahead"], "no modules that predict further ahead"),
        (["--lookup", "3", "--draft", str(tmp_path / "draft")], "take one of them"),
        (["--draft-tokens", "3"], "name the draft too"),
        (["--lookup", "3", "--beams", "2"], "leave --beams and --data out"),
        (["--draft", str(tmp_path / "nowhere")], "nowhere"),
    ):
        status, stdout, stderr = run(*given, *options)
        assert (status, stdout, stderr.count("\n")) == (2, "", 1), stderr
        assert words in stderr
