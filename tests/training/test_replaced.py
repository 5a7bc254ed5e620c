"""Replaced-token detection: equal to transformers' generator and discriminator; what is shared, drawn, judged, refused."""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import anyformer as af
from anyformer import recipe as recipes
from anyformer.errors import SpecError, UsageError
from anyformer.hub import save
from anyformer.model import Transformer
from anyformer.recipe import AdamW, LinearDecay, ReplacedTokens, Warmup
from anyformer.spec import parameters
from anyformer.text import NOT_PREDICTED, Batch
from anyformer.training.data.feed import parts_of
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.objective import Auxiliary, LossContext, objective_of, with_head_for
from anyformer.training.objectives.replaced import loss as replaced
from anyformer.training.objectives.replaced.loss import (
    ReplacedNoise,
    ReplacedObjective,
    ReplacedRows,
    generator_for,
    sampled,
)
from anyformer.training.step import Trainer
from anyformer.training.step.trainer import rows_of
from tests.training import noisy
from tests.training.replacing import recipe, spec, trainer

Embeddings = Literal["shared", "disentangled", "separate"]
KINDS: tuple[Embeddings, ...] = ("shared", "disentangled", "separate")


def rows(lengths: tuple[int, ...] = (24, 9, 24, 17), seed: int = 0, **said: Any) -> ReplacedRows:
    """One document a row, some padded: batches in which rows have unlike numbers of hidden tokens."""
    rng, n = np.random.default_rng(seed), 24
    special = set(noisy.tokenizer().special_ids)
    words = [i for i in range(noisy.tokenizer().vocab_size) if i not in special and noisy.tokenizer().spelling(i)]
    real = np.arange(n) < np.array(lengths)[:, None]
    ids = np.where(real, rng.choice(words, real.shape), 0)
    ids[:, 0] = noisy.tokenizer().end_of_text  # a special one: read, judged, never hidden
    place = np.where(real, np.arange(n), 0)
    batch = Batch(ids, np.full_like(ids, NOT_PREDICTED), real.astype(np.int64), place, np.where(real, 0, -1))
    given = recipe(ReplacedTokens(**said))
    assert isinstance(given.objective, ReplacedTokens)
    noise = ReplacedNoise.of(given.objective, given.seq_len, noisy.tokenizer())
    return noise(batch, [np.random.default_rng((seed, i)) for i in range(len(lengths))])


def whole(by: Trainer, batch: ReplacedRows) -> Tensor:
    """The loss of a batch, as the paper writes it."""
    assert by.auxiliary is not None
    device = torch.device("cpu")
    way = LossContext(
        by.model, by.model.head(), device, auxiliary=LossContext(by.auxiliary, by.auxiliary.head(), device)
    )
    return by.objective(way, batch).total / int((batch.labels != NOT_PREDICTED).sum())


def theirs(model: Transformer, where: Path) -> nn.Module:
    """The same weights in the class of transformers that has them."""
    import transformers

    save(model, where)
    config = transformers.AutoConfig.from_pretrained(where)
    name = config.architectures[0] if config.architectures else ""
    assert name == {"rtd": "ElectraForPreTraining", "mlm": "ElectraForMaskedLM"}[model.spec.heads[0].name]
    return getattr(transformers, name).from_pretrained(where, attn_implementation="eager").eval()


def gradients_in_their_names(model: Transformer, where: Path) -> dict[str, Tensor]:
    """What `save` makes of gradients instead of weights."""
    from safetensors.torch import load_file

    bearer = af.build(model.spec, seed=None)
    with torch.no_grad():
        for mine, held in zip(bearer.parameters(), model.parameters(), strict=True):
            mine.copy_(held.grad if held.grad is not None else torch.zeros_like(held))
    save(bearer, where)
    return load_file(where / "model.safetensors")


@pytest.mark.parametrize("embeddings", KINDS)
def test_equal_to_transformers(embeddings: Embeddings, tmp_path: Path) -> None:
    """Loss and every gradient, of the two classes of transformers with these weights and these draws; a step by hand."""
    said = ReplacedTokens(embeddings=embeddings, temperature=0.7)
    by, batch = trainer(said), rows()
    assert by.auxiliary is not None
    with torch.no_grad():  # weights by which the two differ, and predictions that are not all alike
        for each in (*by.model.parameters(), *by.auxiliary.parameters()):
            if each.dim() == 2:
                each.mul_(3)
    generator, discriminator = theirs(by.auxiliary, tmp_path / "g"), theirs(by.model, tmp_path / "d")
    passes = by.gradients(1, batch)
    ids, hidden = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.hidden)
    mask, labels = torch.from_numpy(batch.document), torch.from_numpy(batch.labels)
    logits = generator(input_ids=ids, attention_mask=mask).logits
    words = F.cross_entropy(logits[hidden], labels[hidden])
    chances = (logits[hidden].detach().double() / said.temperature).softmax(-1).cumsum(-1).numpy()
    draws = batch.draw[batch.hidden].astype(np.float64)
    assert np.abs(chances - draws[:, None]).min() > 1e-6, (
        "a draw on a boundary: rounding would decide; take another seed"
    )
    filled = labels.where(mask > 0, torch.zeros(())).long().clone()
    filled[hidden] = torch.tensor(
        [int(np.searchsorted(c, d, side="right")) for c, d in zip(chances, draws, strict=True)]
    )
    target = ((filled != labels) & (mask > 0)).float()
    assert 0 < target.sum() <= hidden.sum()
    scores = discriminator(input_ids=filled, attention_mask=mask).logits
    told = F.binary_cross_entropy_with_logits(scores, target, reduction="none")[mask > 0]
    (words + 50 * told.mean()).backward()
    assert passes.loss * passes.tokens == pytest.approx(float(told.detach().sum()), rel=1e-5)
    assert passes.parts is not None
    assert passes.parts["generator"] == pytest.approx(float(words.detach()), rel=1e-5)
    wanted = [
        {name: p.grad for name, p in each.named_parameters() if p.grad is not None}
        for each in (generator, discriminator)
    ]
    assert [len(each) for each in wanted] == [len(list(each.parameters())) for each in (generator, discriminator)]
    if embeddings == "shared":
        names = [name for name in wanted[0] if name.startswith("electra.embeddings.")]
        assert len(names) == 5  # tokens, positions, segments, gain and bias of the norm
        for name in names:
            wanted[0][name] = wanted[1][name] = wanted[0][name] + wanted[1][name]
    for model, gradients, where in ((by.auxiliary, wanted[0], "gg"), (by.model, wanted[1], "dg")):
        found = gradients_in_their_names(model, tmp_path / where)
        assert set(gradients) <= set(found)
        most = max(float(gradient.abs().max()) for gradient in gradients.values())
        for name, gradient in gradients.items():
            # The bias of keys has none but for rounding.
            scale = max(float(gradient.abs().max()), 1e-4 * most)
            assert torch.allclose(found[name], gradient, atol=2e-5 * scale, rtol=0), name


def test_disentangled_is_a_sum_whose_first_term_has_no_gradient() -> None:
    """Five steps by hand: E_D = sg(E_G) + E_Δ with E_Δ a parameter of its own, from 0; then folded."""
    said = ReplacedTokens(embeddings="disentangled")
    by = trainer(said, clip=0.5, schedule=(Warmup(steps=2), LinearDecay(to=0.1)))
    again = trainer(said, clip=0.5, schedule=(Warmup(steps=2), LinearDecay(to=0.1)))
    generator, model = again.auxiliary, again.model
    assert generator is not None
    tables = ("shared.tokens.weight", "stack.embedding.terms.1.weight", "stack.embedding.terms.2.weight")
    of_g, of_d = dict(generator.named_parameters()), dict(model.named_parameters())
    for name in tables:
        assert torch.equal(of_g[name], of_d[name])  # the distance is 0 at first
    deltas = {name: nn.Parameter(torch.zeros_like(of_d[name])) for name in tables}
    kept = {name: p for name, p in of_d.items() if name not in tables}
    matrices = [p for name, p in [*of_g.items(), *kept.items()] if p.dim() == 2 and name not in tables]
    heads = [p for name, p in kept.items() if name == "heads.0.table.weight"]
    others = [p for p in (*of_g.values(), *kept.values(), *deltas.values()) if not any(p is m for m in matrices)]
    decaying = [p for p in matrices if not any(p is h for h in heads)]
    rule = by.recipe.optimizer
    assert isinstance(rule, AdamW)
    optimizer = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": rule.weight_decay}, {"params": [*others, *heads], "weight_decay": 0.0}],
        lr=1e-2,
        betas=(rule.beta1, rule.beta2),
        eps=rule.eps,
    )
    device = torch.device("cpu")
    for step in range(1, 6):
        batch = rows(seed=step)
        by.step(step, batch)
        summed = {name: of_g[name].detach() + deltas[name] for name in tables}

        def forward(*args: Any, summed: dict[str, Tensor] = summed, **options: Any) -> Any:
            return functional_call(model, summed, args, options)

        way = LossContext(forward, model.head(), device, auxiliary=LossContext(generator, generator.head(), device))
        loss = again.objective(way, batch).total / int((batch.labels != NOT_PREDICTED).sum())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.5)
        for group in optimizer.param_groups:
            group["lr"] = by.learning_rate(step)
        optimizer.step()
    assert by.auxiliary is not None
    mine_g, mine_d = dict(by.auxiliary.named_parameters()), dict(by.model.named_parameters())
    for name in tables:
        assert float(deltas[name].detach().abs().max()) > 1e-3, "the distance was not learnt"
        assert torch.allclose(mine_d[name], of_g[name] + deltas[name], atol=1e-5), name
    for found, wanted in ((mine_g, of_g), (mine_d, kept)):
        for name, value in wanted.items():
            assert torch.allclose(found[name], value, atol=1e-5), name


@pytest.mark.parametrize("embeddings", KINDS)
def test_what_moves_the_generators_table(embeddings: Embeddings) -> None:
    """The model's loss, fifty times or once, reaches the generator through a table that is really shared, and only so."""
    tables = []
    for weight in (50.0, 1.0):
        by = trainer(ReplacedTokens(embeddings=embeddings, weight=weight))
        by.gradients(1, rows())
        assert by.auxiliary is not None
        (table,) = [p for name, p in by.auxiliary.named_parameters() if name == "shared.tokens.weight"]
        assert table.grad is not None
        tables.append(table.grad)
    assert torch.equal(*tables) == (embeddings != "shared")


@pytest.mark.parametrize("embeddings", KINDS)
def test_what_is_shared_is_one(embeddings: Embeddings) -> None:
    by = trainer(ReplacedTokens(embeddings=embeddings))
    assert by.auxiliary is not None
    own, held = {id(p) for p in by.model.parameters()}, list(by.auxiliary.parameters())
    assert sum(id(p) in own for p in held) == (5 if embeddings == "shared" else 0)
    each = [id(p) for group in by.optimizer.param_groups for p in group["params"]]
    assert sorted(each) == sorted({*own, *map(id, held)})
    assert by.auxiliary.head().table.weight is dict(by.auxiliary.named_parameters())["shared.tokens.weight"]
    for name, parameter in by.auxiliary.named_parameters():
        decays = [g["weight_decay"] > 0 for g in by.optimizer.param_groups if any(parameter is p for p in g["params"])]
        matrix = parameter.dim() == 2 and "embedding.terms" not in name and not name.startswith("shared.")
        assert decays == [matrix], name


@pytest.mark.parametrize("micro_tokens", [24, 48])
def test_parts_of_a_batch_add_up_to_it(micro_tokens: int) -> None:
    """Rows with 1 to 4 hidden tokens each: the generator's mean is over those of the batch, not of a part."""
    batch, found = rows(), []
    assert len({int(n) for n in batch.hidden.sum(1)}) > 1
    for micro in (None, micro_tokens):
        by = trainer(ReplacedTokens(embeddings="separate"), micro_tokens=micro)
        passes = by.gradients(1, batch)
        assert by.auxiliary is not None
        found.append((passes[:2], passes.parts, [p.grad for p in (*by.model.parameters(), *by.auxiliary.parameters())]))
    assert len(parts_of(batch, rows_of(batch, micro_tokens))) == 96 // micro_tokens
    (loss, parts, gradients), (again, parts_again, others) = found
    assert again == pytest.approx(loss, rel=1e-6)
    assert parts is not None
    assert parts_again == pytest.approx(parts, rel=1e-6)
    for one, other in zip(gradients, others, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert torch.allclose(one, other, atol=1e-6 * max(1.0, float(one.abs().max())))


def test_a_word_drawn_as_it_was_counts_as_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    by, batch = trainer(), rows()
    assert by.auxiliary is not None
    device, hidden = torch.device("cpu"), torch.from_numpy(batch.hidden)
    originals = torch.from_numpy(batch.labels)
    way = LossContext(
        by.model, by.model.head(), device, auxiliary=LossContext(by.auxiliary, by.auxiliary.head(), device)
    )
    seen = []
    for shift in (0, 1):
        drawn = originals[hidden] - shift
        drawn[: len(drawn) // 2] += shift  # half of them as they were
        monkeypatch.setattr(replaced, "sampled", lambda *rest, drawn=drawn: drawn)
        losses = by.objective(way, batch)
        assert losses.classes is not None
        seen.append(losses.classes)
        assert losses.parts["replaced"].labels == (0 if shift == 0 else len(drawn) - len(drawn) // 2)
    padding = originals == NOT_PREDICTED
    assert (seen[0][padding] == NOT_PREDICTED).all()
    assert (seen[0][~padding] == 0).all()
    changed = torch.zeros_like(hidden)
    changed[hidden] = torch.arange(int(hidden.sum())) >= int(hidden.sum()) // 2
    assert torch.equal(seen[1] == 1, changed)


def test_every_token_is_judged_and_no_special_one_hidden() -> None:
    batch = rows()
    ends = batch.labels == noisy.tokenizer().end_of_text
    assert ends.sum() == 4
    assert not batch.hidden[ends].any()
    assert ((batch.labels == NOT_PREDICTED) == (batch.document == 0)).all()
    mask = noisy.tokenizer().special_ids
    assert (batch.input_ids[batch.hidden] == batch.input_ids[batch.hidden][0]).all()
    assert batch.input_ids[batch.hidden][0] in mask
    assert (batch.input_ids == np.where(batch.hidden, batch.input_ids, np.maximum(batch.labels, 0))).all()
    # round(0.15 n) of the n words of a row, at least one
    assert batch.hidden.sum(1).tolist() == [3, 1, 3, 2]
    assert batch.judged_per_hidden[0, 0] == pytest.approx((24 + 9 + 24 + 17) / 9)
    half = rows(mask_share=0.5, seed=3, rate=0.9)
    shown = half.input_ids[half.hidden] == half.labels[half.hidden]
    assert 0.2 < shown.mean() < 0.8


def test_draws_have_the_generators_distribution() -> None:
    by = trainer()
    assert by.auxiliary is not None
    head = by.auxiliary.head()
    with torch.no_grad():
        head.table.weight.mul_(12)
    read = torch.randn(1, by.auxiliary.spec.stack.d_model, generator=torch.Generator().manual_seed(0))
    n = 20_000
    even = (torch.arange(n) + 0.5) / n
    for temperature in (1.0, 0.5):
        chances = (head(read)[0].detach() / temperature).softmax(-1)
        assert float(chances.max()) > 3 / len(chances), "too even to tell temperatures apart"
        found = sampled(head, read.expand(n, -1), even, temperature)
        shares = torch.bincount(found, minlength=len(chances)) / n
        assert float((shares - chances).abs().max()) < 2 / n + 1e-4  # even draws: off by one at either end
    assert sampled(head, read[:0], even[:0], 1.0).shape == (0,)
    assert int(sampled(head, read, torch.tensor([1 - 2**-24]), 1.0)) < by.auxiliary.spec.vocab_size


@pytest.mark.parametrize(("name", "width"), [("small", 1 / 4), ("base", 1 / 3), ("large", 1 / 4)])
def test_the_generators_of_the_paper(name: str, width: float) -> None:
    """Table 6: what is made of a model is the generator that was published beside it."""
    made = generator_for(af.preset(f"electra-{name}").spec, width)
    assert made == af.preset(f"electra-{name}-generator").spec


def test_half_as_deep_and_as_wide() -> None:
    """DeBERTaV3, section 3.1: the generator has the model's width and half its depth."""
    model = af.preset("deberta-v3-base").spec
    made = generator_for(model, 1.0, 0.5)
    assert (made.n_layers, made.stack.d_model) == (model.n_layers // 2, model.stack.d_model)
    assert made.stack.embedding == model.stack.embedding


def test_the_generator_is_counted() -> None:
    from anyformer.training.run.plan import flops_per_token, sizes

    by = trainer()
    load = by.objective  # the protocol that plans go by
    assert isinstance(load, ReplacedObjective)
    asked: Auxiliary = load.auxiliary()
    n, own = parameters(by.model.spec).total, parameters(asked.spec).total
    tied = sum(dict(by.model.named_parameters())[name].numel() for name in asked.tied.values())
    assert sizes(by) == (n, own - tied, 4 * (n + own) + 8 * (n + own - tied)), (
        "moments of what both have are saved once"
    )
    row = af.spec.Workload(batch=1, query=100)
    body = asked.spec.but(heads=()).cost(af.spec.Place(), row).flops
    head = asked.spec.cost(af.spec.Place(), row).flops - body  # linear in tokens
    more = flops_per_token(by.model.spec, row, load) - flops_per_token(by.model.spec, row)
    assert more == pytest.approx((3 * body + 4 * 0.15 * head) / 100, rel=1e-6)


def test_every_parameter_is_trained() -> None:
    for embeddings in KINDS:
        by = trainer(ReplacedTokens(embeddings=embeddings), label_smoothing=0.1)
        assert by.auxiliary is not None
        by.gradients(1, rows())
        for model in (by.model, by.auxiliary):
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert torch.isfinite(parameter.grad).all(), name
                assert parameter.grad.abs().sum() > 0, name


def test_the_two_start_unlike() -> None:
    """Drawn from one seed, but not the same numbers: a generator as large as the model is no copy of it."""
    said = ReplacedTokens(generator_width=1.0, embeddings="separate")
    by, again = trainer(said).auxiliary, trainer(said).auxiliary
    assert by is not None
    assert again is not None
    copied = af.build(by.spec, seed=recipe(said).seed)
    name = next(name for name, p in by.named_parameters() if name.startswith("stack.blocks.0") and p.dim() == 2)
    assert torch.equal(by.get_parameter(name), again.get_parameter(name))
    assert not torch.equal(by.get_parameter(name), copied.get_parameter(name))


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("gpt2", "causal.*use CausalLM"),
            ("t5-small", "an encoder and a decoder; use SpanCorruption"),
            ("xlnet-base", "two streams; use PermutedLM"),
            ("bert-base", "its first head, 'mlm', does not give one score a token; put one that does first"),
        ],
    )
    def test_architectures(self, name: str, says: str) -> None:
        with pytest.raises(UsageError, match=f"ReplacedTokens does not go with this architecture: .*{says}"):
            objective_of(ReplacedTokens(), af.preset(name).spec)

    def test_generators(self) -> None:
        model = spec()
        for generator, says in [
            (af.preset("gpt2").spec, "of its generator: its masks are causal"),
            (model, "of its generator: its first head, 'rtd', does not predict tokens"),
            (af.resize(generator_for(model, 0.25), vocab_size=99), "a vocabulary of 99, and the model one of"),
            (generator_for(spec(width=32), 0.25), "cannot be shared; give the generator the same embedding"),
        ]:
            with pytest.raises(UsageError, match=says):
                objective_of(ReplacedTokens(generator=generator), model)
        objective_of(ReplacedTokens(generator=generator_for(spec(width=32), 0.25), embeddings="separate"), model)

    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("rate", 0.0, "rate = 0.0 must be above 0"),
            ("rate", 1.0, "rate = 1.0 must be above 0 and below 1"),
            ("mask_share", 1.5, "at least 0 and at most 1"),
            ("generator_width", 0.0, "must be above 0 and at most 1"),
            ("generator_depth", 1.5, "must be above 0 and at most 1"),
            ("weight", 0.0, "must be above 0"),
            ("temperature", math.inf, "must be a finite number"),
        ],
    )
    def test_fields(self, field: str, value: float, says: str) -> None:
        with pytest.raises(SpecError, match=says):
            ReplacedTokens(**{field: value})  # type: ignore[arg-type]


def test_as_data() -> None:
    own = recipe(ReplacedTokens(generator=generator_for(spec(), 0.5), embeddings="disentangled"))
    assert recipes.loads(recipes.dumps(own)) == own
    text = "recipe: 1\nobjective: {kind: ReplacedTokens, rate: 0.25, embeddings: shred}"
    with pytest.raises(SpecError, match="'shared'"):
        recipes.loads(text)


def test_a_head_is_given_to_an_encoder_without() -> None:
    found = with_head_for(af.preset("bert-base").spec, ReplacedTokens())
    assert [head.name for head in found.heads] == ["rtd"]
    assert isinstance(objective_of(ReplacedTokens(), found), ReplacedObjective)
    assert with_head_for(af.preset("electra-small").spec, ReplacedTokens()) == af.preset("electra-small").spec
    assert usual(af.preset("electra-small").spec) == ReplacedTokens()
    assert usual(af.preset("electra-small-generator").spec) == recipes.MaskedLM()
