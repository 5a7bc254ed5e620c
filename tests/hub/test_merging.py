"""Ways to merge models, as `anyformer convert` does: against plain loops over their numbers, by laws, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import CheckpointError, SpecError, UsageError
from anyformer.families import preset
from anyformer.hub import load, save
from anyformer.hub.merging import DARE, TIES, WAYS, Mean, Merge, Merging, OnBase, Slerp, TaskArithmetic, way_of
from anyformer.resizing import shrink
from tests.cli.running import run
from tests.hub.edits import settings
from tests.hub.test_conversion import held
from tests.laws.models import randomised
from tests.oracles import merging as oracle

NEAR: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}  # float32's rounding of a few sums


convert = partial(run, "convert")


def made(target: Path, *arguments: str | Path) -> dict[str, Tensor]:
    """What `convert` writes."""
    result = convert(arguments[0], target, *arguments[1:])
    assert result.exit_code == 0, result.output
    return held(target)


def family(there: Path, name: str = "llama2", n: int = 3, dtype: torch.dtype = torch.float32, **how: Any) -> list[Path]:
    """A base, and models that have changed every number of it a little."""
    spec, places = shrink(preset(name).spec), [there / each for each in ("base", *"abc"[:n])]
    for seed, place in enumerate(places):
        model, noise = randomised(spec), torch.Generator().manual_seed(seed)
        for each in model.parameters():
            if seed and each.is_floating_point():
                each.data += 0.1 * torch.randn(each.shape, generator=noise)
        save(model.to(dtype), place, **how)
    return places


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["llama2", "gpt2"])
@pytest.mark.parametrize(
    ("way", "weights", "n", "expected"),
    [
        ("mean", (1.0, 0.5, -0.25), 3, oracle.mean),
        ("slerp", (1.0, 0.5), 2, oracle.slerp),
        ("task-arithmetic", (1.0, 0.8, -0.5), 3, oracle.task_arithmetic),
        ("ties", (1.0, 1.0, 1.0), 3, lambda *given: oracle.ties(*given, density=0.2, scale=1.0)),
        ("ties,density=0.6,scale=1.5", (1.0, 0.7, -0.4), 3, lambda *given: oracle.ties(*given, density=0.6, scale=1.5)),
    ],
)
def test_every_tensor_is_what_plain_loops_make(
    name: str, way: str, weights: tuple[float, ...], n: int, expected: Callable[..., list[float]], tmp_path: Path
) -> None:
    base, *models = family(tmp_path, name, n)
    with_base = ["--base", base] if expected not in (oracle.mean, oracle.slerp) else []
    more = [part for path, w in zip(models[1:], weights[1:], strict=True) for part in ("--with", f"{path}={w}")]
    found = made(tmp_path / "out", models[0], *more, "--by", way, *with_base)
    files = [held(path) for path in models]
    for tensor, value in held(base).items():
        numbers = [each[tensor].flatten().tolist() for each in files]
        given = (numbers, weights, value.flatten().tolist()) if with_base else (numbers, weights)
        np.testing.assert_allclose(found[tensor].flatten(), expected(*given), **NEAR, err_msg=tensor)
        assert found[tensor].shape == value.shape


class TestLaws:
    def test_weights_that_are_equal_leave_the_mean(self, tmp_path: Path) -> None:
        _, a, b, c = family(tmp_path)
        plain = made(tmp_path / "plain", a, "--with", b, "--with", c)
        found = made(tmp_path / "out", a, "--with", f"{b}=1", "--with", f"{c}=1.0")
        assert all(found[name].equal(value) for name, value in plain.items())

    def test_how_weights_began_and_for_how_many_tokens_is_no_other_architecture(self, tmp_path: Path) -> None:
        """A model that was trained on with longer rows, whose file says another deviation to start from, is one of the family."""
        _, a, b = family(tmp_path, n=2)
        expected = made(tmp_path / "out", a, "--with", b)
        config = json.loads((b / "config.json").read_text())
        longer = {"initializer_range": 0.5, "max_position_embeddings": 2 * config["max_position_embeddings"]}
        settings(b, **longer)
        assert load(b)[0].spec != load(a)[0].spec
        found = made(tmp_path / "longer", a, "--with", b)
        assert all(found[name].equal(value) for name, value in expected.items())
        assert load(tmp_path / "longer")[0].spec == load(a)[0].spec
        settings(b, rms_norm_eps=0.5)
        assert "eps is 0.5 and" in convert(a, tmp_path / "odd", "--with", b).output

    def test_a_model_that_is_given_twice_weighs_twice(self, tmp_path: Path) -> None:
        _, a, b = family(tmp_path, n=2)
        twice = made(tmp_path / "twice", a, "--with", b, "--with", b)
        found = made(tmp_path / "out", a, "--with", f"{b}=2")
        assert all(found[name].equal(value) for name, value in twice.items())

    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_a_model_merged_with_itself_is_itself(self, way: type[Merge]) -> None:
        own, base = draw(5, 7), draw(5, 7, seed=1)
        first = {Mean: [own, own], Slerp: [own, own]}.get(way, [own, own, own])
        torch.testing.assert_close(Merging(way(), (0.3, 0.7)).of("x", first), own, rtol=0, atol=1e-7)
        if way is TIES:
            torch.testing.assert_close(Merging(TIES(density=1.0), (0.3, 0.7)).of("x", [own, own, base]), own, **NEAR)

    def test_one_model_of_weight_1_is_task_arithmetics(self, tmp_path: Path) -> None:
        base, a = family(tmp_path, n=1)
        found = made(tmp_path / "out", base, "--with", a, "--base", base, "--by", "task-arithmetic")
        for name, value in held(a).items():
            torch.testing.assert_close(found[name], value, **NEAR)

    def test_a_model_taken_away_from_itself_leaves_the_base(self, tmp_path: Path) -> None:
        base, a = family(tmp_path, n=1)
        found = made(tmp_path / "out", a, "--with", f"{a}=-1", "--base", base, "--by", "task-arithmetic")
        for name, value in held(base).items():
            torch.testing.assert_close(found[name], value, **NEAR)

    def test_changes_that_agree_have_their_mean_by_ties(self) -> None:
        base, first = draw(6, 5), draw(6, 5, seed=1)
        models = [base + scale * first for scale in (1.0, 2.0, 4.5)]
        found = Merging(TIES(density=1.0), (1.0, 1.0, 1.0)).of("x", [*models, base])
        torch.testing.assert_close(found, base + 2.5 * first, **NEAR)

    def test_changes_that_cancel_are_none_by_ties(self) -> None:
        base, change = torch.zeros(4), torch.tensor([1.0, -2.0, 3.0, 0.0])
        assert Merging(TIES(density=1.0), (1.0, 1.0)).of("x", [change, -change, base]).equal(base)

    def test_the_largest_stay_by_ties(self) -> None:
        change = torch.tensor([[0.1, -5.0, 3.0], [4.0, -0.2, 0.3]])
        for density, least in ((0.01, 5.0), (0.34, 4.0), (0.5, 3.0), (0.99, 0.2), (1.0, 0.0)):
            found = Merging(TIES(density=density), (1.0,)).of("x", [change, torch.zeros(2, 3)])
            assert found.equal(change * (change.abs() >= least)), density

    @pytest.mark.parametrize("factor", [1.0, 3.0, -2.0, 0.0])
    def test_between_parallel_tensors_slerp_is_on_the_chord(self, factor: float) -> None:
        a = draw(40, 3)
        found = Merging(Slerp(), (1.0, 0.5)).of("x", [a, factor * a])
        torch.testing.assert_close(found, (2 + factor) / 3 * a, **NEAR)

    def test_slerp_keeps_the_length(self) -> None:
        a, b = draw(50), draw(50, seed=1)
        b *= a.norm() / b.norm()
        found = Merging(Slerp(), (1.0, 3.0)).of("x", [a, b])
        torch.testing.assert_close(found.norm(), a.norm())
        angles = [math.acos(float(x @ y / x.norm() / y.norm())) for x, y in ((a, found), (a, b))]
        assert angles[0] == pytest.approx(0.75 * angles[1], rel=1e-4)


class TestDare:
    def test_of_each_change_a_share_stays_scaled_up(self, tmp_path: Path) -> None:
        base, a = family(tmp_path, n=1)
        found = made(tmp_path / "out", base, "--with", f"{a}=2", "--base", base, "--by", "dare,density=0.4")
        stayed = total = 0
        for name, start in held(base).items():
            full = start + 2 * (held(a)[name] - start) / 0.4
            kept = found[name] != start
            torch.testing.assert_close(found[name], torch.where(kept, full, start), **NEAR)
            stayed, total = stayed + int(kept.sum()), total + kept.numel()
        assert stayed / total == pytest.approx(0.4, abs=5 * math.sqrt(0.24 / total))

    def test_draws_go_by_seed_model_and_tensor_alone(self, tmp_path: Path) -> None:
        base, a, b = family(tmp_path, n=2)
        given = (a, "--with", b, "--base", base, "--by")
        first = made(tmp_path / "first", *given, "dare,density=0.5,seed=0")
        small = made(tmp_path / "small", *given, "dare,density=0.5,seed=0", "--shard-size", "1000")
        assert len(list((tmp_path / "small").glob("*.safetensors"))) > 5
        other = made(tmp_path / "other", *given, "dare,density=0.5,seed=1")
        assert all(small[name].equal(value) for name, value in first.items())
        assert all(not other[name].equal(value) for name, value in first.items())
        made(tmp_path / "ours", *given, "dare", "--to", "anyformer")
        models = [load(tmp_path / each)[0].state_dict() for each in ("first", "ours")]
        assert all(models[0][name].equal(value) for name, value in models[1].items())
        made_of = Merging(DARE(), (1.0, 1.0)).of
        one, zero = torch.ones(200), torch.zeros(200)
        assert not made_of("x", [one, zero, zero]).equal(made_of("x", [zero, one, zero])), (
            "each model has draws of its own"
        )
        assert not made_of("x", [one, zero, zero]).equal(made_of("y", [one, zero, zero])), "and each tensor"

    def test_what_all_stays_of_is_task_arithmetic(self) -> None:
        tensors = [draw(9, 4, seed=seed) for seed in range(3)]
        ways = (DARE(density=1.0, seed=3), TaskArithmetic())
        torch.testing.assert_close(*(Merging(way, (1.0, -0.5)).of("x", tensors) for way in ways))


class TestNumbers:
    def test_another_shard_size_gives_the_same(self, tmp_path: Path) -> None:
        base, a, b, c = family(tmp_path)
        given = (a, "--with", b, "--with", f"{c}=0.5", "--base", base, "--by", "ties")
        first, small = made(tmp_path / "first", *given), made(tmp_path / "small", *given, "--shard-size", "1000")
        assert first.keys() == small.keys()
        assert all(small[name].equal(value) for name, value in first.items())

    def test_halves_are_merged_in_float32_and_rounded_once(self, tmp_path: Path) -> None:
        base, a, b = family(tmp_path, n=2, dtype=torch.bfloat16)
        given = (a, "--with", f"{b}=0.3", "--base", base, "--by", "task-arithmetic")
        halves, whole = made(tmp_path / "halves", *given), made(tmp_path / "whole", *given, "--dtype", "float32")
        for name, start in ((name, each.double()) for name, each in held(base).items()):
            exact = start + (held(a)[name] - start) + 0.3 * (held(b)[name] - start)
            assert whole[name].dtype == torch.float32
            torch.testing.assert_close(whole[name].double(), exact, rtol=1e-6, atol=1e-7)
            assert halves[name].equal(whole[name].bfloat16())
        assert convert(a, tmp_path / "out.gguf", *given[1:], "--quantise", "f32").exit_code == 0
        for name, value in load(tmp_path / "out.gguf")[0].state_dict().items():
            assert value.equal(load(tmp_path / "whole")[0].state_dict()[name]), "a file of more bits has them"

    def test_what_a_type_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        base, a = family(tmp_path, n=1, dtype=torch.float16)
        given = (a, "--with", f"{a}=1e6", "--base", base, "--by", "task-arithmetic")
        result = convert(given[0], tmp_path / "out", *given[1:])
        assert (result.exit_code, "beyond 65504" in result.output) == (2, True), result.output
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("way", [Mean(), Slerp(), TaskArithmetic(), TIES(), DARE(density=1.0)])
    def test_what_is_no_number_stays_none(self, way: Merge) -> None:
        """A model that is broken is not merged as one that learnt nothing there."""
        tensors = [draw(9, 4, seed=seed) for seed in range(3)]
        tensors[1][2, 3] = math.nan
        made = Merging(way, (1.0, 1.0)).of("x", tensors[: 3 if isinstance(way, OnBase) else 2])
        assert made.isnan().nonzero().tolist() == [[2, 3]]

    def test_whole_numbers_stay_where_they_are_equal(self) -> None:
        same, other = torch.tensor([1, 2]), torch.tensor([1, 3])
        for way in (Mean(), TaskArithmetic(), TIES(), DARE()):
            assert Merging(way, (1.0, 2.0)).of("table", [same, same, same]).equal(same)
            with pytest.raises(CheckpointError, match="table holds whole numbers that differ"):
                Merging(way, (1.0, 2.0)).of("table", [same, same, other])

    def test_in_python(self, tmp_path: Path) -> None:
        base, a, b = family(tmp_path, n=2)
        expected = made(tmp_path / "cli", a, "--with", f"{b}=0.5", "--base", base, "--by", "ties,density=0.4")
        for i, (others, way) in enumerate((({b: 0.5}, "ties,density=0.4"), ({str(b): 0.5}, TIES(density=0.4)))):
            af.convert(a, tmp_path / f"{i}", others=others, by=way, base=base)
            assert all(held(tmp_path / f"{i}")[name].equal(value) for name, value in expected.items())
        with pytest.raises(
            UsageError, match=r"others\[0\] = a value of the class Transformer must be a text, or a path"
        ):
            af.convert(a, tmp_path / "odd", others=[load(b)[0]])  # type: ignore[list-item]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("models")
    base, a, *_ = family(there)
    save(randomised(shrink(preset("gpt2").spec)), there / "gpt2")
    assert convert(base, there / "base.gguf").exit_code == convert(a, there / "a.gguf").exit_code == 0
    return there


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("--with b=-1", "the weights add up to 0, and a mean is divided by their sum"),
            ("--with b=-0.25 --with c=-0.75", "the weights add up to 0, and a mean is divided by their sum"),
            ("--with b=nan", "--with b: its weight is no number that float32 holds"),
            ("--with b=-inf", "--with b: its weight is no number that float32 holds"),
            ("--with b=1e40", "--with b: its weight is no number that float32 holds"),
            ("--with b=half", "there is nothing at b=half"),
            ("--with b --base base", "--base is of --by task-arithmetic, ties and dare"),
            ("--with b --base base --by slerp", "--base is of --by task-arithmetic, ties and dare"),
            ("--with b --by ties", "ties and dare merge what models changed of one; name that by --base"),
            ("--with b --by task-arithmetic", "ties and dare merge what models changed of one; name that by --base"),
            ("--with b --by dare", "ties and dare merge what models changed of one; name that by --base"),
            ("--by slerp", "--by and --base are for several models; name those to merge by --with"),
            ("--base base", "--by and --base are for several models; name those to merge by --with"),
            ("--with b --with c --by slerp", "--by slerp: an arc has two models as its ends; give one --with"),
            ("--with b=-0.5 --by slerp", "give one --with, and no weight below 0"),
            ("--with b --base base --by ties,density=0", "TIES.density = 0.0 must be above 0 and at most 1"),
            ("--with b --base base --by ties,density=1.01", "TIES.density = 1.01 must be above 0 and at most 1"),
            ("--with b --base base --by dare,density=nan", "DARE.density = nan must be a finite number"),
            ("--with b --base base --by ties,scale=0", "TIES.scale = 0.0 must be above 0"),
            ("--with b --base base --by dare,seed=-1", "DARE.seed = -1 must be at least 0"),
            ("--with b --base base --by dare,seed=0.5", "--by.seed = 0.5 must be of type int"),
            ("--with b --base base --by ties,density=x",  "--by.density = 'x' must be of type float"),
            ("--with b --base base --by ties,densty=1", "TIES has no field 'densty' (did you mean 'density'?)"),
            ("--with b --base base --by ties,density", "--by.density = 'density' must be of type float"),
            ("--with b --base base --by ties,density=1,density=1", "'TIES(density=1,density=1)' cannot be read"),
            ("--with b --by slerp,t=0.5", "Slerp has no field 't'"),
            ("--with b --by sleep", "'sleep' is no way to merge (did you mean 'slerp'?); there are mean, slerp, task-"),
            ("--with b --base nowhere --by ties", "there is nothing at nowhere"),
            ("--with b --base gpt2 --by ties", "gpt2 is another architecture than a"),
            ("--with a.gguf", "a.gguf has its tensors in another layout than a; bring both into one by `convert` first"),
            ("--with b --base base.gguf --by ties", "base.gguf has its tensors in another layout than a"),
            ("--by ties --into gpt2-medium", "--into leaves no room for --by"),
        ],
    )  # fmt: skip
    def test_in_one_line_before_anything_is_written(
        self, given: str, said: str, there: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(there)
        result = convert("a", "out", *given.split())
        assert (result.exit_code, said in result.output) == (2, True), result.output
        assert result.output.count("\n") == 1
        assert not Path("out").exists()

    def test_files_of_one_layout_are_merged_into_any(self, there: Path, tmp_path: Path) -> None:
        given = ("--with", there / "base.gguf", "--by", "slerp")
        assert convert(there / "a.gguf", tmp_path / "out.gguf", *given).exit_code == 0
        found, plain = (
            made(tmp_path / "out", there / "a.gguf", *given),
            made(tmp_path / "plain", there / "a", "--with", there / "base", "--by", "slerp"),
        )
        ours = load(tmp_path / "out.gguf")[0].state_dict()
        for name, value in load(tmp_path / "plain")[0].state_dict().items():
            torch.testing.assert_close(ours[name], value, **NEAR)
        assert found.keys() == plain.keys()
        assert all(found[name].equal(plain[name]) for name in plain if found[name].ndim == 1)

    def test_a_file_whose_name_ends_in_a_number(self, there: Path, tmp_path: Path) -> None:
        (tmp_path / "b=0.5").symlink_to(there / "b")
        found = made(tmp_path / "out", there / "a", "--with", tmp_path / "b=0.5")
        expected = made(tmp_path / "plain", there / "a", "--with", there / "b")
        assert all(found[name].equal(value) for name, value in expected.items())

    def test_texts_in_python(self) -> None:
        assert way_of("ties,density=0.3,scale=2") == TIES(density=0.3, scale=2.0)
        assert way_of("dare,seed=5") == DARE(seed=5)
        with pytest.raises(UsageError, match="is no way to merge"):
            way_of("")
        with pytest.raises(SpecError, match="must be above 0"):
            way_of("dare,density=-1")
