"""The sampler against a stream written out in full."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer.errors import TextError
from anyformer.text import Sampler

SIZES = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes=SIZES, seed=st.integers(0, 2**40))
def test_every_row_once_an_epoch(sizes: tuple[int, int], seed: int) -> None:
    n_rows, batch_rows = sizes
    sampler = Sampler(n_rows, batch_rows, seed)
    batches = [next(sampler) for _ in range(-(-3 * n_rows // batch_rows))]
    assert {len(batch) for batch in batches} == {batch_rows}
    stream = np.concatenate(batches).tolist()
    for epoch in range(3):
        assert sorted(stream[epoch * n_rows : (epoch + 1) * n_rows]) == list(range(n_rows))


@given(sizes=SIZES, seed=st.integers(0, 9), drawn=st.integers(0, 30), steps=st.integers(1, 10))
def test_a_restart_goes_on_where_it_stopped(sizes: tuple[int, int], seed: int, drawn: int, steps: int) -> None:
    straight, stopped, started = (Sampler(*sizes, seed) for _ in range(3))
    expected = [next(straight).tolist() for _ in range(drawn + steps)]
    for _ in range(drawn):
        next(stopped)
    started.restore(json.loads(json.dumps(stopped.state())))
    assert [next(started).tolist() for _ in range(steps)] == expected[drawn:]
    assert started.rows(drawn).tolist() == expected[drawn]  # a function of the step, whatever was asked before
    assert started.rows(0).tolist() == expected[0]


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(Sampler(50, 50, seed).rows(epoch).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_far_steps_cost_no_more() -> None:
    assert sorted(Sampler(10, 10, 0).rows(10**12).tolist()) == list(range(10))


def test_what_is_refused() -> None:
    with pytest.raises(TextError, match="makes 7 rows, less than one batch of 8"):
        Sampler(7, 8, 0)
    with pytest.raises(TextError, match="a batch of 0 rows holds nothing"):
        Sampler(9, 0, 0)


@pytest.mark.parametrize("name", ["seed", "n_rows", "batch_rows"])
def test_the_state_of_another_stream(name: str) -> None:
    state = Sampler(9, 3, 0).state()
    with pytest.raises(TextError, match=f"saved with {name}=77 but is {name}="):
        Sampler(9, 3, 0).restore(state | {name: 77})
    del state[name]
    with pytest.raises(TextError, match=f"lacks '{name}'"):
        Sampler(9, 3, 0).restore(state)
