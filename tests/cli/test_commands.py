"""`show`, `presets`, `cost`, `tokenizer`, `evaluate`, `convert`: what they print, on the screen and as JSON."""

import json
import math
from pathlib import Path

import pytest
import torch
import yaml

import anyformer as af
from anyformer.text import Tokenizer
from tests.cli.running import answer, refused, run, succeeded, write_text

pytestmark = pytest.mark.usefixtures("_quick")


class TestShow:
    def test_a_preset(self) -> None:
        told, gpt2 = answer("show", "gpt2"), af.preset("gpt2")
        rows = {row["key"]: row for row in told["card"]}
        assert (told["version"], told["name"], rows["source"]["words"]) == (2, "gpt2", gpt2.source)
        assert (rows["vocab_size"]["value"], rows["n_params"]["value"]) == (50_257, 124_439_808)
        shown = succeeded(run("show", "gpt2")).stdout
        assert "124,439,808" in shown
        assert gpt2.source[:40] in " ".join(shown.split())

    @pytest.mark.parametrize("name", ["gpt2", "llama3.2-1b", "transformer-base"])
    def test_the_specification_is_that_of_a_file(self, tmp_path: Path, name: str) -> None:
        told = answer("show", name)["specification"]
        assert told["anyformer"] == 1
        (tmp_path / "a.json").write_text(json.dumps(told), encoding="utf-8")
        assert af.load_spec(tmp_path / "a.json") == af.preset(name).spec

    def test_the_recipe_is_that_of_a_file(self) -> None:
        from anyformer import recipe

        told = answer("show", "transformer-base")["recipe"]
        assert told["recipe"] == 1
        assert recipe.loads(json.dumps(told)) == af.preset("transformer-base").recipe
        assert answer("show", "gpt2")["recipe"] is None

    @pytest.mark.parametrize("form", ["yaml", "json"])
    def test_a_specification_to_save_and_change(self, tmp_path: Path, form: str) -> None:
        file = tmp_path / f"mine.{form}"
        file.write_text(succeeded(run("show", "llama2-7b", "--spec", form)).stdout, encoding="utf-8")
        assert af.load_spec(file) == af.preset("llama2-7b").spec
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
        data["context"] = 99
        file.write_text(json.dumps(data) if form == "json" else yaml.safe_dump(data), encoding="utf-8")
        assert answer("show", file)["specification"]["context"] == 99

    def test_a_run_and_a_directory(self, trained: Path, converted: Path) -> None:
        assert answer("show", trained)["specification"] == answer("show", converted)["specification"]
        assert answer("show", converted)["name"] == str(converted)


class TestPresets:
    def test_all(self) -> None:
        told = answer("presets")
        assert told["version"] == 1
        assert tuple(preset["name"] for preset in told["presets"]) == af.presets()
        shown = succeeded(run("presets")).stdout
        assert all(name in shown for name in af.presets())

    def test_a_family(self) -> None:
        told = answer("presets", "--family", "gpt2")["presets"]
        assert (told[0]["name"], told[0]["parameters"], told[0]["layers"]) == ("gpt2", 124_439_808, 12)
        assert {one["family"] for one in told} == {"gpt2"}
        assert "llama" not in succeeded(run("presets", "--family", "gpt2")).stdout


class TestCost:
    def test_by_hand(self) -> None:
        """GPT-2 small: 12 layers of 4·768² + 8·768² weights; 12 heads see n(n+1)/2 pairs; a table of 50,257 · 768."""
        n = 1024
        told = answer("cost", "gpt2", "--seq-len", n, "--batch", "2")
        products = 12 * 12 * 768**2 + 50_257 * 768
        pairs = 12 * 768 * 2 * (n * (n + 1) // 2)
        assert told["forward_flops_total"] == 2 * 2 * (products * n + pairs)
        assert told["training_flops_per_token"] == 3 * told["forward_flops_total"] / (2 * n)
        assert told["cache_nbytes"] == 2 * n * 12 * 2 * 768 * 2  # batch, token, layer, keys and values, width, bf16
        assert told["weights_nbytes"] == 2 * 124_439_808
        assert told["training_nbytes"] == 16 * 124_439_808
        assert (told["version"], told["model"], told["convention"]) == (2, "gpt2", "exact-causal")
        full = answer("cost", "gpt2", "--seq-len", n, "--convention", "full-attention", "--dtype", "float32")
        assert full["forward_flops_total"] == 2 * (products * n + 12 * 768 * 2 * n * n)
        assert full["weights_nbytes"] == 4 * 124_439_808

    def test_the_screen(self) -> None:
        shown = succeeded(run("cost", "llama2-7b")).stdout
        for words in ("6,738,415,616", "exact-causal", "12.6 GiB", "2 GiB", "training state"):
            assert words in shown


class TestTokenizer:
    def test_train_and_encode(self, tmp_path: Path, text: Path) -> None:
        out = tmp_path / "tok"
        told = answer("tokenizer", "train", text, "--vocab", "300", "--out", out)
        own = Tokenizer.load(out)
        assert (told["version"], told["out"], told["vocab_size"]) == (1, str(out), 300)
        assert (told["vocab_size"], told["fingerprint"]) == (own.vocab_size, own.fingerprint)
        content = text.read_text(encoding="utf-8")
        assert told["bytes_per_token"] == pytest.approx(len(content.encode()) / len(own.encode(content)))
        words = "the owl sits: Größe\n"
        encoded = answer("tokenizer", "encode", "--tokenizer", out, "--text", words)
        assert (encoded["version"], encoded["ids"]) == (1, own.encode(words))
        assert own.decode(encoded["ids"]) == words
        assert len(encoded["pieces"]) == len(encoded["ids"])
        typed = succeeded(run("tokenizer", "encode", "--tokenizer", out / "tokenizer.json", "--json", typed=words))
        assert json.loads(typed.stdout) == encoded
        shown = succeeded(run("tokenizer", "encode", "--tokenizer", out, "--text", "owl\x1b\x7f")).stdout
        assert [int(line.split()[0]) for line in shown.splitlines()] == own.encode("owl\x1b\x7f")
        assert not set(shown) & {"\x1b", "\x7f"}

    def test_the_screen(self, tmp_path: Path, text: Path) -> None:
        shown = succeeded(run("tokenizer", "train", text, "--vocab", "280", "--out", tmp_path / "tok")).stdout
        assert shown.startswith("280 tokens, ")
        assert shown.endswith(f"saved in {tmp_path / 'tok'}\n")


class TestConvert:
    def test_the_same_numbers_in_each_form(self, tmp_path: Path, trained: Path, converted: Path) -> None:
        assert (converted / "config.json").is_file()
        result = succeeded(run("convert", converted, tmp_path / "ours", "--to", "anyformer"))
        assert result.stdout == f"{tmp_path / 'ours'} is a directory of ours\n"
        models = [af.load(place)[0] for place in (trained, converted, tmp_path / "ours")]
        assert models[0].spec.but(context=None) == models[1].spec.but(context=None)
        for other in models[1:]:
            for (name, a), b in zip(models[0].named_parameters(), other.parameters(), strict=True):
                assert torch.equal(a, b), name
        tokenizers = [af.load(place)[1] for place in (trained, tmp_path / "ours")]
        assert tokenizers[0] is not None
        assert tokenizers[1] is not None
        assert tokenizers[0].fingerprint == tokenizers[1].fingerprint

    def test_another_type_of_numbers(self, tmp_path: Path, converted: Path) -> None:
        succeeded(run("convert", converted, tmp_path / "half", "--dtype", "bfloat16"))
        half, whole = af.load(tmp_path / "half")[0], af.load(converted)[0]
        for a, b in zip(half.parameters(), whole.parameters(), strict=True):
            assert torch.equal(a, b.bfloat16())

    def test_what_has_no_class_is_not_forced(self, tmp_path: Path) -> None:
        from anyformer.families.compose import changed
        from anyformer.layers import AttentionSpec, SlidingWindow
        from anyformer.spec import Window

        spec = changed(af.shrink(af.preset("llama2-7b")), AttentionSpec, mask=SlidingWindow(size=Window(3)))
        af.save(af.build(spec), tmp_path / "ours")
        result = run("convert", tmp_path / "ours", tmp_path / "out", "--to", "hf")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "mask" in result.stderr
        assert not (tmp_path / "out").exists()


class TestEvaluate:
    def test_all_ways_to_the_same_model(self, text: Path, trained: Path, converted: Path) -> None:
        """The run, a checkpoint's own directory, and its conversion; nats and bits by their definitions."""
        last = max((trained / "checkpoints").glob("step-*"))
        common = ("--data", text, "--seq-len", "32", "--device", "cpu")
        found = [answer("evaluate", place, *common) for place in (trained, last, converted)]
        assert found[0] == found[1]
        for name, value in found[0].items():
            assert found[2][name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), name
        one = found[0]
        assert (one["version"], one["documents"], one["nbytes"]) == (1, 1, text.stat().st_size)
        assert one["loss"] == pytest.approx(one["nats"] / one["tokens"])
        assert one["bits_per_byte"] == pytest.approx(one["nats"] / math.log(2) / one["nbytes"])
        shown = succeeded(run("evaluate", trained, *common)).stdout
        assert f"{one['loss']:.4f} nats a token, perplexity {one['perplexity']:.3f}" in shown

    def test_a_checkpoint_is_judged_by_the_recipe_of_its_run(self, text: Path, trained: Path) -> None:
        places = (trained, max((trained / "checkpoints").glob("step-*")))
        found = [answer("evaluate", place, "--data", text, "--device", "cpu") for place in places]
        assert found[0] == found[1]
        assert found[0]["seq_len"] == af.recipe.read(trained / "recipe.yaml").seq_len

    def test_a_memory_joins_the_windows(self, trained: Path, tmp_path: Path) -> None:
        """Where it holds all that came before, the length of the windows does not show."""
        write_text(tmp_path / "text.txt")
        short = tmp_path / "short.txt"
        short.write_text((tmp_path / "text.txt").read_text()[:900])
        common = ("evaluate", trained, "--data", short, "--device", "cpu")
        found = [answer(*common, "--seq-len", n, "--memory", "10k") for n in ("8", "32")]
        assert found[0]["nats"] == pytest.approx(found[1]["nats"], rel=1e-5)
        assert [one["memory"] for one in found] == [10_000, 10_000]
        alone = answer(*common, "--seq-len", "8")
        assert "memory" not in alone
        assert {name: alone[name] for name in ("tokens", "nbytes")} == {n: found[0][n] for n in ("tokens", "nbytes")}
        assert alone["nats"] != pytest.approx(found[0]["nats"], rel=1e-4)
        refused(
            run("evaluate", trained, "--source", short, "--target", short, "--memory", "8", "--device", "cpu"),
            "--memory is for texts that are read in windows",
        )

    def test_another_length_is_another_task(self, text: Path, trained: Path) -> None:
        short, longer = (
            answer("evaluate", trained, "--data", text, "--seq-len", n, "--device", "cpu") for n in ("8", "32")
        )
        assert short["seq_len"] == 8
        assert short["nats"] != longer["nats"]
        assert short["nbytes"] == longer["nbytes"]
