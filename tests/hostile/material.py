"""What is valid, small, and about to be damaged: made once, of every kind of file that is read."""

from __future__ import annotations

import gzip
import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.hostile.arena import Arena, Limits
from tests.hostile.trees import Lexicon

SPECIFICATIONS = (  # together they use every kind of part, and then some that people write themselves
    *("llama2-70b", "gpt2", "transformer-base", "t5-base", "mixtral-8x7b", "deepseek-v3-mtp", "gemma3-4b", "bert-base"),
    *("albert-base", "xlnet-base", "longformer-base-4096", "bigbird-base", "gpt-oss-20b", "deberta-v2-xlarge-emd"),
    *("switch-base-8", "sparse-transformer-cifar10", "phi3-small-8k", "led-base-16384", "bloom-560m", "phi4-mini"),
    *("nemotron4-15b", "llama3.1-8b", "sparse-transformer-enwik8"),
)
LINEAGES = (  # with a class of transformers each, whose configurations and tensors are read by tables of their own
    *(
        "gpt2",
        "llama3.1-8b",
        "mistral-7b-v0.1",
        "mixtral-8x7b",
        "gemma2-9b",
        "gemma3-4b",
        "t5-base",
        "bert-base",
        "opt-125m",
    ),
    *(
        "bloom-560m",
        "gptj-6b",
        "gpt-neo-125m",
        "falcon-7b",
        "phi-2",
        "phi3-mini-4k",
        "qwen2-7b",
        "olmo2-7b",
        "deepseek-v3",
    ),
    *("gpt-oss-20b", "albert-base", "electra-small", "deberta-v3-base", "longformer-base-4096", "bigbird-base"),
    *("xlnet-base", "bart-base", "opus-mt-en-de", "command-r", "nemotron4-15b", "pythia-70m", "gpt"),
)
SMALL = ("--seq-len", "16", "--batch-tokens", "64", "--tokens", "768", "--vocab", "300", "--device", "cpu")
UNLIMITED = Limits(8 << 30, 500, 500.0)
OBJECTIVES = {"gpt2": "causal-lm", "bert-base": "masked-lm"}


class Material:
    """Valid inputs below `root`, made when first asked for."""

    def __init__(self, root: Path, arena: Arena) -> None:
        self.root, self.arena = root, arena
        self.known: dict[object, str] = {}  # answers of what is undamaged

    def anyformer(self, *words: object) -> str:
        """Run a command that must succeed; returns what it printed."""
        ended = self.arena.run([str(word) for word in words], self.root, limits=UNLIMITED)
        assert ended.status == 0, (words, ended.errors)
        return ended.out

    @cached_property
    def specifications(self) -> list[Path]:
        """Of each architecture a YAML and a JSON file, side by side in a folder."""
        from anyformer import dumps, shrink
        from anyformer.families import PRESETS

        folder = self._folder("specifications")
        for name in SPECIFICATIONS:
            if name in PRESETS:
                spec = shrink(PRESETS[name].spec)
                (folder / f"{name}.yaml").write_text(dumps(spec), encoding="utf-8")
                (folder / f"{name}.json").write_text(dumps(spec, "json"), encoding="utf-8")
        return sorted(folder.iterdir())

    @cached_property
    def language(self) -> Lexicon:
        """What stands in specifications and recipes of ours: kinds, fields, values."""
        from anyformer.spec.part import Spec

        names = {*Spec.kinds, *(name for kind in Spec.kinds.values() for name in kind.types())}
        files = [path for path in self.specifications if path.suffix == ".json"]
        found = Lexicon.of((json.loads(path.read_text(encoding="utf-8")) for path in files), sorted(names))
        kinds = sorted(Spec.kinds)
        return found._replace(values={**found.values, "kind": [*found.values["kind"], *kinds]})

    @cached_property
    def settings(self) -> Lexicon:
        """What stands in configurations of transformers."""
        return Lexicon.of(json.loads((path / "config.json").read_text(encoding="utf-8")) for path in self.hf)

    @cached_property
    def recipes(self) -> list[Path]:
        """Published recipes and the small ones, as YAML."""
        from anyformer import recipe

        folder = self._folder("recipes")
        for name in (
            "quick",
            "small",
            "gpt3-125m",
            "llama2-7b",
            "deepseek-v3",
            "opt-125m",
            "transformer-2017",
            "olmo-1b-0724",
        ):
            (folder / f"{name}.yaml").write_text(recipe.dumps(recipe.named(name)), encoding="utf-8")
        return sorted(folder.iterdir())

    @cached_property
    def corpus(self) -> Path:
        """A folder of text, lines of JSON, and both packed."""
        folder = self._folder("corpus")
        lines = [f"line {i}: the {('cat', 'dog', 'öwl')[i % 3]} sits on mat number {i * 7 % 11}." for i in range(300)]
        text = "\n".join(lines) + "\n"
        (folder / "a.txt").write_text(text, encoding="utf-8")
        (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
        (folder / "c.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        (folder / "d.md").write_text("# Title\n\n" + text, encoding="utf-8")
        return folder

    @cached_property
    def labelled(self) -> Path:
        """A folder with labelled texts in the forms that are read."""
        folder = self._folder("labelled")
        rows = [(f"number {i} is {'good' if i % 2 else 'bad'}", "good" if i % 2 else "bad") for i in range(40)]
        (folder / "a.jsonl").write_text(
            "".join(json.dumps({"text": t, "label": l}) + "\n" for t, l in rows), encoding="utf-8"
        )
        (folder / "a.csv").write_text("text,label\n" + "".join(f"{t},{l}\n" for t, l in rows), encoding="utf-8")
        (folder / "a.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{l}\n" for t, l in rows), encoding="utf-8")
        return folder

    @cached_property
    def run(self) -> Path:
        """A run of a small decoder with several checkpoints, and its text and specification beside it."""
        folder = self._folder("run")
        shutil.copy(self.corpus / "a.txt", folder / "text.txt")
        shutil.copy(next(path for path in self.specifications if path.name == "llama2-70b.yaml"), folder / "model.yaml")
        self.anyformer("train", folder / "model.yaml", "--data", folder / "text.txt", "--out", folder / "run", *SMALL)
        return folder

    @cached_property
    def interrupted(self) -> Path:
        """The same, its newest checkpoint not yet written."""
        folder = shutil.copytree(self.run, self.root / "interrupted")
        newest = max((folder / "run" / "checkpoints").glob("step-*"))
        shutil.rmtree(newest)
        return folder

    @cached_property
    def tokenizers(self) -> list[Path]:
        """Directories of tokenizers of every kind."""
        folder = self._folder("tokenizers")
        for kind in ("byte-level-bpe", "bpe", "wordpiece", "unigram", "words", "characters"):
            self.anyformer(
                "tokenizer", "train", self.corpus / "a.txt", "--kind", kind, "--vocab", "300", "--out", folder / kind
            )
        return sorted(folder.iterdir())

    @cached_property
    def hf(self) -> list[Path]:
        """Hugging Face directories of several lineages, some in shards with an index."""
        import torch

        from anyformer import Tokenizer, build, resize, save, shrink
        from anyformer.families import PRESETS

        folder = self._folder("hf")
        tokenizer = Tokenizer.load(self.tokenizers[1])
        for i, name in enumerate(name for name in LINEAGES if name in PRESETS):
            torch.manual_seed(0)
            spec = resize(shrink(PRESETS[name].spec), vocab_size=300)
            save(build(spec), folder / name, tokenizer, shard_nbytes=20_000 if i % 3 == 0 else 1 << 30)
        return sorted(path for path in folder.iterdir() if (path / "config.json").exists())

    @cached_property
    def ours(self) -> Path:
        """A directory of ours, and one of a run in Hugging Face's form."""
        folder = self._folder("ours")
        self.anyformer("convert", self.run / "run", folder / "anyformer", "--to", "anyformer")
        self.anyformer("convert", self.run / "run", folder / "hf", "--shard-size", "60kB")
        return folder

    @cached_property
    def gguf(self) -> list[Path]:
        """GGUF files with their vocabularies: byte-level and sentencepiece's, plain and quantised."""
        from gguf import GGMLQuantizationType as Kind

        from tests.hub.gguf_files import write
        from tests.hub.test_gguf import SIZES, byte_level, llama_tensors, turned

        folder = self._folder("gguf")
        tokens = byte_level()[1]
        tensors = turned(llama_tensors())
        pieces = [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{i:02X}>" for i in range(256)),
            "▁",
            *"abcdefghijklmnopqrstuvwxyz",
            "▁the",
            "ca",
        ]
        pieces += [f"w{i}" for i in range(300 - len(pieces))]
        sentencepiece = {
            "ggml.model": "llama",
            "ggml.tokens": pieces[:300],
            "ggml.scores": [float(-i) for i in range(300)],
            "ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 41],
            "ggml.bos_token_id": 1,
            "ggml.eos_token_id": 2,
        }
        write(folder / "plain.gguf", "llama", tensors, SIZES, tokens=tokens)
        write(folder / "pieces.gguf", "llama", tensors, SIZES, tokens=sentencepiece)
        write(folder / "small.gguf", "llama", tensors, SIZES, tokens=tokens, kind=Kind.Q8_0)
        return sorted(folder.iterdir())

    @cached_property
    def device(self) -> Path:
        """The file of a device, in a folder."""
        from anyformer.costs.hardware.devices import device

        folder = self._folder("device")
        file = folder / "device.yaml"
        import yaml

        data: Any = device("H100").as_json()
        file.write_text(
            yaml.safe_dump({key: value for key, value in data.items() if value is not None}), encoding="utf-8"
        )
        return file

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        return folder
