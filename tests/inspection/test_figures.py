"""Figures of an inspection against transformers' hidden states, attentions and gradients, in plain loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import anyformer as af
from anyformer.inspection.attention import _summed
from anyformer.inspection.results import PartsFigures
from anyformer.layers.tokens import Tokens
from tests.inspection.looked_at import ROW, TEXT, in_transformers, rows_of, small, tokenizer


def close(expected: Any) -> Any:
    return pytest.approx(expected, rel=2e-4, abs=2e-5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of a few whole rows, so that every row is one document."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    ids = tokenizer().encode(TEXT)
    ids = ids[: len(ids) // ROW * ROW - 1]  # and the token that begins it
    path.write_text(tokenizer().decode(ids), encoding="utf-8")
    return path


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of a row [1, token, vocab], summed over what is predicted."""
    return F.cross_entropy(logits[0], labels, ignore_index=-100, reduction="sum")


def test_how_few_have_a_share_of_all_is_counted_from_the_largest() -> None:
    importance = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64).pow(4)
    figures = PartsFigures("", 0, "feed-forward", "neurons", importance)
    for share in (0.5, 0.9):
        n, had = 0, 0.0
        for value in sorted(importance.tolist(), reverse=True):
            if had < share * float(importance.sum()):
                n, had = n + 1, had + value
        assert 1 < n < 50
        assert figures.share_with(share) == n / 50


@pytest.fixture(scope="module", params=["llama3-8b", "qwen3-4b"])  # the second with norms of queries and keys
def both(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    model = small(request.param, n_layers=3)
    theirs = in_transformers(model, tmp_path_factory.mktemp("theirs"))
    rows = rows_of(model, data)
    assert len(rows) > 1
    found = af.inspect(model, data, tokenizer=tokenizer(), seq_len=ROW)
    return found, theirs, rows, sum(int((labels != -100).sum()) for _, labels in rows)


def test_losses_of_ends_and_turns_are_those_of_their_hidden_states(both: tuple[Any, ...]) -> None:
    found, theirs, rows, n = both
    ended, turned, whole = torch.zeros(3), torch.zeros(3), 0.0
    with torch.no_grad():
        for ids, labels in rows:
            states: list[Tensor] = []
            handles = [
                layer.register_forward_hook(lambda _, given, made, to=states: to.append(given[0]) or to.append(made))
                for layer in theirs.inner.layers
            ]
            whole += float(loss(theirs.pass_over(ids).logits, labels))
            for handle in handles:
                handle.remove()
            for i in range(3):
                before, behind = states[2 * i], states[2 * i + 1]
                ended[i] += loss(theirs.model.lm_head(theirs.inner.norm(behind)), labels)
                turned[i] += (1 - F.cosine_similarity(before, behind, dim=-1)).sum()
    assert found.labels == n
    assert found.loss == close(whole / n)
    assert [layer.ended for layer in found.layers] == close((ended / n).tolist())
    assert [layer.turned for layer in found.layers] == close((turned / (len(rows) * ROW)).tolist())


def test_losses_without_a_branch_are_those_of_a_map_of_zeros(both: tuple[Any, ...]) -> None:
    found, theirs, rows, n = both
    for layer, of_ours in zip(theirs.inner.layers, found.layers, strict=True):
        assert [branch.kind for branch in of_ours.branches] == ["attention", "feed-forward"]
        for linear, branch in zip((layer.self_attn.o_proj, layer.mlp.down_proj), of_ours.branches, strict=True):
            weight = linear.weight.data.clone()
            linear.weight.data.zero_()
            with torch.no_grad():
                without = sum(float(loss(theirs.pass_over(ids).logits, labels)) for ids, labels in rows) / n
            linear.weight.data.copy_(weight)
            assert branch.without == close(without - found.loss)


def test_heads_and_neurons_matter_by_the_gradient_of_what_they_give(both: tuple[Any, ...]) -> None:
    """Michel et al. 2019, equation 2: |u · ∂L/∂u| of what a head gives, for each row, here from hooks of transformers."""
    found, theirs, rows, n = both
    heads = theirs.model.config.num_attention_heads
    of_heads = torch.zeros(3, heads)
    of_neurons = torch.zeros(3, theirs.model.config.intermediate_size)
    for ids, labels in rows:
        given: dict[tuple[int, str], Tensor] = {}
        handles = []
        for i, layer in enumerate(theirs.inner.layers):
            for what, linear in (("heads", layer.self_attn.o_proj), ("neurons", layer.mlp.down_proj)):

                def keep(_: Any, args: Any, at: tuple[int, str] = (i, what), to: Any = given) -> None:
                    to[at] = args[0]
                    args[0].retain_grad()

                handles.append(linear.register_forward_pre_hook(keep))
        loss(theirs.pass_over(ids).logits, labels).backward()
        for handle in handles:
            handle.remove()
        for (i, what), u in given.items():
            assert u.grad is not None
            effect = (u.detach() * u.grad).sum((0, 1))
            if what == "heads":
                of_heads[i] += effect.unflatten(0, (heads, -1)).sum(1).abs()
            else:
                of_neurons[i] += effect.abs()
    mine = torch.tensor([head.importance for head in found.heads]).unflatten(0, (3, heads))
    torch.testing.assert_close(mine, of_heads / n, rtol=1e-3, atol=1e-6)
    named = [axes["d_ff"].float() for axes in found.importance.values() if "d_ff" in axes]
    torch.testing.assert_close(torch.stack(named), of_neurons / n, rtol=1e-3, atol=1e-6)


def test_where_heads_look_is_counted_pair_by_pair(both: tuple[Any, ...]) -> None:
    found, theirs, rows, _ = both
    figures = {(head.layer, head.head): head for head in found.heads}
    heads = theirs.model.config.num_attention_heads
    assert set(figures) == {(layer, head) for layer in range(3) for head in range(heads)}
    with torch.no_grad():
        each = [theirs.pass_over(ids).attentions for ids, _ in rows]
    for (layer, head), mine in figures.items():
        sums = dict.fromkeys(("itself", "previous", "first", "distance"), 0.0)
        entropies = []
        for weights in (row[layer][0, head].double().tolist() for row in each):
            for query, of_keys in enumerate(weights):
                for key, weight in enumerate(of_keys[: query + 1]):
                    sums["itself"] += weight if key == query else 0
                    sums["previous"] += weight if key == query - 1 else 0
                    sums["first"] += weight if key == 0 and query > 0 else 0
                    sums["distance"] += weight * (query - key)
                if query:
                    entropy = -sum(w * math.log(w) for w in of_keys[: query + 1] if w > 0)
                    entropies.append(entropy / math.log(query + 1))
        for name, value in sums.items():
            assert getattr(mine, name) == pytest.approx(value / (len(rows) * ROW), rel=1e-3, abs=1e-5), name
        assert mine.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-3)


def test_induction_is_the_weight_behind_the_last_occurrence(both: tuple[Any, ...], data: Path) -> None:
    found, theirs, *_ = both
    n = 32
    once = torch.randint(tokenizer().vocab_size, (4, n), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attentions = theirs.pass_over(torch.cat((once, once), 1)).attentions
    for head in found.heads:
        weights = attentions[head.layer][:, head.head]
        share = sum(float(weights[row, n + i, i + 1]) for row in range(4) for i in range(n)) / (4 * n)
        assert head.induction == pytest.approx(share, rel=1e-3, abs=1e-6)


def test_a_row_is_read_as_their_states_and_attentions_say(both: tuple[Any, ...]) -> None:
    found, theirs, rows, _ = both
    ids, labels = rows[0]
    reading = found.reading
    decode = tokenizer().decode
    assert reading.tokens == tuple(decode([i], specials=True) for i in ids[0].tolist())
    assert reading.right == tuple(None if i == -100 else decode([i], specials=True) for i in labels.tolist())
    with torch.no_grad():
        out = theirs.pass_over(ids)
    assert [answer.layer for answer in reading.answers] == ["embedding", "0", "1", "2"]
    for answer, state in zip(reading.answers, out.hidden_states, strict=True):
        normed = state if answer.layer == "2" else theirs.inner.norm(state)  # their last one is normed
        shares = theirs.model.lm_head(normed)[0].softmax(-1)
        assert answer.says == tuple(decode([i], specials=True) for i in shares.argmax(-1).tolist())
        torch.testing.assert_close(torch.tensor(answer.probability), shares.amax(-1), rtol=1e-3, atol=1e-5)
        right = [shares[i, label].item() for i, label in enumerate(labels.tolist()) if label != -100]
        assert [each for each in answer.right if each is not None] == pytest.approx(right, rel=1e-3, abs=1e-6)
    for mine, weights in zip(reading.maps, out.attentions, strict=True):
        torch.testing.assert_close(mine.weights, weights[0], rtol=1e-3, atol=1e-5)
        assert mine.queries == mine.keys == reading.tokens


def test_where_heads_look_is_summed_on_the_device_of_the_weights() -> None:
    """Of attention to what an encoder made, too, which has no shares by distance."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        weights = torch.empty(1, 2, 4, 3, device="meta")
        sums = _summed(weights, Tokens(torch.empty(1, 4, device="meta")), own=False)
    assert (sums.shape, sums.device.type) == ((2, 5, 2), "cpu")
