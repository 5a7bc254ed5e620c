"""Weights of a directory under another architecture: what is new, and what is said of it; tests/surgery has the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.errors import CheckpointError, UsageError
from anyformer.families import preset, with_classifier
from anyformer.families.compose import changed
from anyformer.hub import load, save, transplant
from anyformer.layers import GatedDeltaNetSpec
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.text import Tokenizer
from tests.cli.running import run
from tests.laws.models import randomised

BASE = shrink(preset("llama3-8b").spec)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "weights"
    save(randomised(BASE), path)
    return path


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({}, ()),
        ({"eps": 1e-3, "theta": 100.0, "mask": "SlidingWindow(size=8)"}, ()),
        ({"norm": "LayerNorm"}, ("norm_in.bias", "norm.bias")),
        ({"norm": "RMSNorm(weight_offset=1.0)"}, ("norm",)),  # the same shape, and it starts from elsewhere
        ({"n_kv_heads": 1}, ()),
        ({"attention": "MLA(kv_rank=8,head_dim=8,rotary_dim=4)"}, ("projection",)),
        ({"vocab_size": BASE.vocab_size + 3}, ()),
        ({"experts": "mixtral", "d_ff": 112}, ("router",)),
        ({"activation": "GELU"}, ()),  # what the gate was is gone
        ({"n_layers": 1}, ()),
        ({"n_layers": BASE.n_layers + 1}, (f"blocks.{BASE.n_layers}.",)),
    ],
    ids=str,
)
def test_what_is_carried_over(given: Path, change: dict[str, object], new: tuple[str, ...]) -> None:
    spec = af.vary(BASE, **change)
    found = transplant(spec, given, seed=3)
    theirs, mine, drawn = load(given)[0].state_dict(), found.model.state_dict(), build(spec, 3).state_dict()
    assert [name for name in mine if name in found.new] == list(found.new)
    for name, tensor in mine.items():
        known = drawn if name in found.new else theirs
        assert name not in known or known[name].shape != tensor.shape or torch.equal(tensor, known[name]), name
    assert bool(found.new) == bool(new)
    assert all(any(part in name for part in new) for name in found.new)
    assert all(any(part in name for name in found.new) for part in new)


def test_a_mixer_of_another_kind_has_the_maps_of_attention(given: Path) -> None:
    from examples.hybrid import hybrid

    spec = hybrid(BASE)
    found = transplant(spec, given)
    new = {name.split("mixer.")[1] for name in found.new}
    own = {"decay", "step", "out_gate.weight", "forget.weight", "write.weight", "convolution.weight", "norm.weight"}
    assert new == own
    assert not any("blocks.1." in name or "sublayers.1" in name for name in found.new)
    wide = transplant(changed(spec, GatedDeltaNetSpec, key_dim=8, value_dim=8), given)
    assert {name.split("mixer.")[1] for name in wide.new} == own | {"q.weight", "k.weight", "v.weight", "out.weight"}


def test_labels_go_where_their_rows_go(tmp_path: Path) -> None:
    spec = with_classifier(shrink(preset("bert-base").spec), 3, "classes")
    model = randomised(spec)
    model.labels = ("a", "b", "c")
    save(model, tmp_path / "given")
    assert transplant(af.vary(spec, norm="RMSNorm"), tmp_path / "given").model.labels == ("a", "b", "c")
    other = with_classifier(shrink(preset("bert-base").spec), 2, "classes")
    assert transplant(other, tmp_path / "given").model.labels is None


def test_nothing_alike(tmp_path: Path) -> None:
    """Streams of two widths, and one of a third."""
    save(randomised(shrink(preset("t5gemma-9b-2b").spec)), tmp_path / "given")
    with pytest.raises(
        CheckpointError, match=r"nothing in .* is alike in that architecture; give a variant of it, with str"
    ):
        transplant(af.vary(BASE, d_model=112), tmp_path / "given")


def test_heads_of_another_width_of_as_many_numbers_are_told_of(tmp_path: Path) -> None:
    """Where d_model is shared out among heads, fewer are wider ones, and every tensor has the shape that it had."""
    spec = shrink(preset("bert-base").spec)
    save(randomised(spec), tmp_path / "given")
    said = "4 heads of width 8 read as 2 of 16 (to have heads that are what they were, add +head_dim=8)"
    assert transplant(af.vary(spec, n_heads=2), tmp_path / "given").how == (said,)
    kept = transplant(af.vary(spec, n_heads=2, head_dim=8), tmp_path / "given")
    assert kept.how == ("4 heads made 2, by their means",)


def test_a_logit_alone_is_compared_as_it_is(tmp_path: Path) -> None:
    spec = shrink(preset("electra-small").spec)
    save(randomised(spec), tmp_path / "given")
    assert transplant(spec, tmp_path / "given").apart == 0
    assert 0 < (transplant(af.vary(spec, n_layers=1), tmp_path / "given").apart or 0) < 100


@pytest.mark.parametrize("name", ["gemma2-2b", "qwen3-next-80b-a3b", "t5-v1.1-small", "rwkv-4-169m", "jetmoe-8b"])
def test_layers_that_write_nothing_change_no_answer(name: str, tmp_path: Path) -> None:
    """Of patterns, of a decoder beside its encoder, of shifts that start by depth, of experts with a bias of their sum."""
    spec = shrink(preset(name).spec)
    save(randomised(spec), tmp_path / "given")
    last = spec.n_layers - 1
    found = transplant(spec, tmp_path / "given", layers=f"0-{last},{last}~,{last - 1}~")
    assert found.apart == pytest.approx(0, abs=1e-5)
    assert found.model.spec.stack.blocks[-2:] == (spec.stack.blocks[last], spec.stack.blocks[last - 1])
    assert found.model.spec.encoder == spec.encoder
    turned = transplant(spec, tmp_path / "given", layers=",".join(map(str, range(last, -1, -1)))).model.spec
    assert turned.stack.blocks == spec.stack.blocks[::-1]


@pytest.mark.parametrize(
    ("name", "says"), [("albert-base", "say sharing=none of the architecture"), ("lstm-medium", "has no output map")]
)
def test_layers_that_cannot_write_nothing(name: str, says: str, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    save(randomised(spec), tmp_path / "given")
    with pytest.raises(UsageError, match=says):
        transplant(spec, tmp_path / "given", layers="0,1,1~")


def test_a_tokenizer_with_more_tokens_than_the_architecture(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the cat and the hat"], 270)
    save(randomised(af.vary(BASE, vocab_size=270)), tmp_path / "given", tokenizer)
    with pytest.raises(CheckpointError, match=rf"has {tokenizer.vocab_size} tokens, that architecture only 100; add "):
        transplant(af.vary(BASE, vocab_size=100), tmp_path / "given")


def test_experts_by_token_have_no_means(tmp_path: Path) -> None:
    spec = shrink(preset("deepseek-v4-flash").spec)
    save(randomised(spec), tmp_path / "given")
    found = transplant(af.vary(spec, vocab_size=spec.vocab_size + 7), tmp_path / "given")
    assert found.apart == pytest.approx(0, abs=1e-5)
    mine, theirs = (each.state_dict() for each in (found.model, load(tmp_path / "given")[0]))
    whole = [name for name, each in theirs.items() if not each.is_floating_point()]
    assert whole
    for name in whole:
        assert torch.equal(mine[name][: spec.vocab_size], theirs[name]), name


def test_a_directory_in_use_is_refused_at_once(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.inspection.keeping.carried_over", lambda *_, **__: pytest.fail("it was made"))
    refused = run("convert", str(given), str(given), "--into", str(given))
    assert refused.exit_code == 2
    assert "exists already and is not empty; give a new directory" in refused.output


def test_the_command(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("convert", str(given), str(out), "--into", f"{given}+norm=LayerNorm", "--seed", "3")
    assert done.exit_code == 0, done.output
    n = sum(each.numel() for each in load(given)[0].state_dict().values())
    norms = (2 * BASE.n_layers + 1) * BASE.stack.d_model
    assert (
        f"{n:,} of {n + norms:,} numbers are carried over; new: norm_in.bias, stack.norm.bias; its logits are "
        in done.output
    )
    written, made = (
        load(out)[0].state_dict(),
        transplant(af.vary(BASE, norm="LayerNorm"), given, seed=3).model.state_dict(),
    )
    assert all(torch.equal(written[name], made[name]) for name in made)
    into = ["--into", "llama2"]
    rest = "leave all but --to, --layers, --tokenizer, --data, --tokens, --seed, --source, --target out"
    for more, says in (
        (
            [*into, "--dtype", "bfloat16"],
            f"leaves no room for --dtype; {rest}",
        ),
        (
            [*into, "--shard-size", "1MB"],
            f"leaves no room for --shard-size; {rest}",
        ),
        (
            [*into, "--average", "2"],
            f"leaves no room for --average; {rest}",
        ),
        (
            [*into, "--with", str(given)],
            f"leaves no room for --with; {rest}",
        ),
        ([*into, "--seed", str(10**30)], "Invalid value for '--seed'"),
        (["--seed", "3"], "--seed is of what --into makes; give --into too, or leave --seed out"),
        (["--layers", "0"], "--layers is of what --into makes; give --into too, or leave --layers out"),
        (["--tokenizer", "t"], "--tokenizer is of what --into makes; give --into too, or leave --tokenizer out"),
        (
            ["--into", "llama2+layers=1", "--layers", "0,1"],
            "--layers 0,1 names 2 layers, and llama2+layers=1 has 1; leave one of the two out",
        ),
        ([*into, "--layers", "0-9"], "--layers 0-9: there is no layer 9; those given are 0 to 1"),
        (
            [*into, "--tokenizer", "t"],
            "has no tokenizer, so no token has the text of one of another; leave --tokenizer out",
        ),
    ):
        refused = run("convert", str(given), str(tmp_path / "b"), *more)
        assert refused.exit_code == 2
        assert says in refused.output
        assert not (tmp_path / "b").exists()


def test_layers_say_how_many_there_are(given: Path, tmp_path: Path) -> None:
    done = run("convert", str(given), str(tmp_path / "out"), "--into", str(given), "--layers", "0,0~,1")
    assert done.exit_code == 0, done.output
    assert "what writes nothing at first; new: mixer.projection.o.weight, mixer.down.weight; " in done.output
    assert "its logits are what they were, to " in done.output
    model = load(tmp_path / "out")[0]
    assert model.spec == af.vary(BASE, n_layers=3)
    theirs, mine = load(given)[0].state_dict(), model.state_dict()
    for at, of in enumerate((0, 0, 1)):
        name = "stack.blocks.{}.sublayers.1.branches.0.mixer.up.weight"
        assert torch.equal(mine[name.format(at)], theirs[name.format(of)])


def test_how_far_the_answers_are_apart(given: Path) -> None:
    """Of the same model nothing, of another norm as far as a pass of both says, of other answers nobody can tell."""
    same = transplant(BASE, given)
    assert same.apart == 0
    assert same.model.training == build(BASE).training
    found = transplant(af.vary(BASE, norm="LayerNorm"), given)
    ids = torch.randint(BASE.vocab_size, (1, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        new, old = (model.eval()(ids).logits for model in (found.model, load(given)[0]))
    centred = old - old.mean(-1, keepdim=True)
    assert found.apart == pytest.approx(
        float((new - old).square().sum().sqrt() / centred.square().sum().sqrt()), rel=1e-4
    )
    assert f"its logits are {found.apart:.1%} away from what they were" in str(found)
    assert transplant(with_classifier(BASE, 3, "classes"), given).apart is None
    assert transplant(shrink(preset("t5-v1.1-small").spec), given).apart is None


def test_another_vocabulary(tmp_path: Path) -> None:
    texts = ["the cat and the hat " * 20, "a cat sat on a mat " * 20]
    old, new = Tokenizer.train(texts, 270), Tokenizer.train([text.replace("cat", "dog") for text in texts], 290)
    spec = af.vary(BASE, vocab_size=old.vocab_size)
    model = randomised(spec)
    save(model, tmp_path / "given", old)
    new.save(tmp_path / "new")
    done = run(
        "convert",
        *map(str, (tmp_path / "given", tmp_path / "out", "--into", tmp_path / "given")),
        "--tokenizer",
        str(tmp_path / "new"),
    )
    assert done.exit_code == 0, done.output
    assert f" of {new.vocab_size} tokens by their text, the others means of what they were spelled by" in done.output
    found, tokenizer = load(tmp_path / "out")
    assert tokenizer is not None
    assert tokenizer.fingerprint == new.fingerprint
    assert found.spec.vocab_size == new.vocab_size
    rows, given = (each.state_dict()["stack.embedding.terms.0.table.weight"] for each in (found, model))
    theirs = {old.spelling(token): token for token in range(old.vocab_size)}
    same = {token: theirs[new.spelling(token)] for token in range(new.vocab_size) if new.spelling(token) in theirs}
    assert len(same) > 257
    assert all(torch.equal(rows[token], given[other]) for token, other in same.items())
    padded = transplant(af.vary(spec, vocab_size=320), tmp_path / "given", tokenizer=new).model
    assert padded.spec.vocab_size == 320
