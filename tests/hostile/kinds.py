"""What is tried: for each kind of input, what is damaged, which command reads it, and what it may then answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import gguf_tree
from tests.hostile.answer import answer_of
from tests.hostile.arena import CLOSED, UNREAD
from tests.hostile.material import SMALL, Material
from tests.hostile.mutate import files_below, mutate_bytes, mutate_entry, mutate_file, mutate_text
from tests.hostile.trees import NOTHING, TEXTS, Lexicon


@dataclass
class Attempt:
    """One command on one damaged input, which lies in a folder of its own."""

    kind: str
    arguments: list[str]
    said: list[str] = field(default_factory=list)  # what was done to the input
    environment: dict[str, str | None] = field(default_factory=dict)
    stdout: str = "utf-8"
    typed: str = ""
    outputs: list[str] = field(default_factory=lambda: ["out"])  # what the command may write
    expected: str | None = None  # the answer of the undamaged input: this, or a refusal, or something is said
    figures: bool = False  # no number in the answer is negative

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


Draw = Callable[[Material, Random, Path], Attempt]
KINDS: dict[str, Draw] = {}
WEIGHTS: dict[str, int] = {}  # of a hundred and some inputs
AREAS: dict[str, str] = {}  # who mends it


def kind(area: str, weight: int) -> Callable[[Draw], Draw]:
    """Register what draws inputs of a kind, called by the function's name."""

    def register(draw: Draw) -> Draw:
        name = draw.__name__
        KINDS[name], WEIGHTS[name], AREAS[name] = draw, weight, area
        return draw

    return register


def several(random: Random, change: Callable[[], str]) -> list[str]:
    """One change, now and then two or three."""
    return [change() for _ in range(random.choice((1, 1, 1, 1, 2, 3)))]


def _damage(files: Sequence[Path], random: Random, entries: float, lexicon: Lexicon = NOTHING) -> str:
    """One of several files damaged; a share of `entries` as a name in its directory. What was done, in words."""
    if not files:
        return "nothing is left"
    file = random.choice(files)
    said = mutate_entry(file, random) if random.random() < entries else mutate_file(file, random, lexicon)
    return f"{file.parent.name}/{said}"


def _copy(source: Path, folder: Path, name: str = "") -> Path:
    target = folder / (name or source.name)
    return shutil.copytree(source, target, symlinks=True) if source.is_dir() else Path(shutil.copyfile(source, target))


def _of_specification(file: str, random: Random) -> list[str]:
    """A command that reads an architecture; those that observe it cost half a second and more, and come less often."""
    if random.random() < 0.02:
        more = random.choice((["--json"], ["--tokens", "1B"], ["--mesh", "dp=1", "--seq-len", "32"]))
        return ["plan", file, "--hardware", "H100", *more]
    if random.random() < 0.12:
        return ["cost", file, *random.choice((["--json"], ["--json"], ["--seq-len", "32"]))]
    return random.choice(
        (
            ["show", file, "--json"],
            ["show", file],
            ["show", file, "--spec", "yaml"],
            ["check", file, "--json"],
            ["check", file],
            ["diff", file, "gpt2", "--json"],
        )
    )


@kind("specs", 20)
def specification(material: Material, random: Random, folder: Path) -> Attempt:
    """A specification's file."""
    file = _copy(random.choice(material.specifications), folder)
    said = several(random, lambda: mutate_file(file, random, material.language))
    arguments = _of_specification(file.name, random)
    return Attempt("", arguments, said, figures="--json" in arguments)


@kind("specs", 3)
def variant(material: Material, random: Random, folder: Path) -> Attempt:
    """The name of a model, or of a variant: BASE+row=VALUE."""
    rows = (
        "norm=LayerNorm",
        "positions=alibi",
        "attention=MLA",
        "d_ff=100",
        "layers=3",
        "d_model=64",
        "window=32",
        "activation=gelu",
    )
    name = "+".join(
        [random.choice(("gpt2", "llama2-7b", "bert-base", "t5-small")), *random.sample(rows, random.randrange(3))]
    )
    changed, said = mutate_text(name.encode(), random, material.language)
    text = changed.decode("utf-8", "surrogateescape").replace("\0", "0")[:5_000]
    command = random.choice((["show", text], ["cost", text, "--json"], ["check", text], ["diff", "gpt2", text]))
    return Attempt("", command, [said], figures="--json" in command)


@kind("specs", 7)
def recipe(material: Material, random: Random, folder: Path) -> Attempt:
    """A recipe's file."""
    file = _copy(random.choice(material.recipes), folder)
    model = _copy(next(path for path in material.specifications if path.name == "llama2-70b.yaml"), folder)
    text = _copy(material.corpus / "a.txt", folder)
    said = several(random, lambda: mutate_file(file, random, material.language))
    sizes = random.choice(((), ("--seq-len", "16", "--batch-tokens", "64", "--tokens", "256")))
    given = ["--recipe", file.name, "--data", text.name, "--vocab", "300", "--device", "cpu", *sizes]
    return Attempt("", ["train", model.name, *given, "--out", "out", "--dry-run", "--json"], said)


@kind("specs", 3)
def device(material: Material, random: Random, folder: Path) -> Attempt:
    """The file of a device."""
    file = _copy(material.device, folder)
    model = _copy(next(path for path in material.specifications if path.name == "gpt2.yaml"), folder).name
    said = several(random, lambda: mutate_file(file, random))
    command = random.choice((["cost", model, "--device", file.name], ["plan", model, "--hardware", file.name]))
    return Attempt("", [*command, *random.choice(([], ["--json"]))], said)


def _of_weights(model: str, random: Random) -> list[str]:
    return random.choice(
        (
            ["convert", model, "out"],
            ["convert", model, "out", "--to", "anyformer"],
            ["generate", "--model", model, "a cat", "--max-new-tokens", "2", "--device", "cpu"],
            ["generate", "--model", model, "a cat", "--max-new-tokens", "2", "--device", "cpu", "--json"],
            ["tokenizer", "audit", "--model", model],
            ["embed", "--model", model, "--text", "a cat", "--device", "cpu", "--json"],
        )
    )


@kind("foreign", 12)
def hf_config(material: Material, random: Random, folder: Path) -> Attempt:
    """A configuration of transformers."""
    source = random.choice(material.hf)
    model = _copy(source, folder, "model")
    said = several(random, lambda: mutate_file(model / "config.json", random, material.settings))
    arguments = _of_specification("./model", random) if random.random() < 0.6 else _of_weights("model", random)
    return Attempt("", arguments, [source.name, *said])


@kind("foreign", 14)
def hf_files(material: Material, random: Random, folder: Path) -> Attempt:
    """Any file of a Hugging Face directory: weights, index, tokenizer, defaults; and links in their place."""
    source = random.choice([*material.hf, material.ours / "hf", material.ours / "anyformer"])
    model = _copy(source, folder, "model")

    def change() -> str:
        found = [path for path in files_below(model) if path.name != "config.json"]
        # An index and a tokenizer are read with more care than weights are, and are fewer.
        index = [path for path in found if "index" in path.name or path.name.startswith("tokenizer")]
        return _damage(index if index and random.random() < 0.5 else found, random, entries=0.25)

    return Attempt("", _of_weights("model", random), [source.name, *several(random, change)])


@kind("foreign", 9)
def gguf(material: Material, random: Random, folder: Path) -> Attempt:
    """A GGUF file: its head as a tree, or its bytes."""
    file = _copy(random.choice(material.gguf), folder)

    def change() -> str:
        content = file.read_bytes()
        try:
            content, said = (gguf_tree.mutate if random.random() < 0.7 else mutate_bytes)(content, random)
        except Exception:  # damaged before: there is no whole head
            content, said = mutate_bytes(content, random)
        file.write_bytes(content)
        return said

    said = several(random, change)
    arguments = _of_weights(file.name, random) if random.random() < 0.7 else _of_specification(file.name, random)
    return Attempt("", arguments, said)


@kind("foreign", 7)
def tokenizer(material: Material, random: Random, folder: Path) -> Attempt:
    """A tokenizer's directory."""
    model = _copy(random.choice(material.tokenizers), folder)

    def change() -> str:
        return _damage(files_below(model), random, entries=0.1)

    said = several(random, change)
    typed = random.choice(("the cat sits", "", "öwl \x1b[31m", "a" * 1_000, "<s></s><|endoftext|><unk>"))
    arguments = ["tokenizer", "encode", "--tokenizer", model.name, "--text", typed]
    return Attempt("", [*arguments, *random.choice(([], ["--json"]))], said)


@kind("runs", 14)
def run(material: Material, random: Random, folder: Path) -> Attempt:
    """Any file of a run that was left whole."""
    interrupted = random.random() < 0.5
    _copy((material.interrupted if interrupted else material.run) / "run", folder)
    for name in ("text.txt", "model.yaml"):
        _copy(material.run / name, folder)
    resume = ["train", "model.yaml", "--data", "text.txt", "--out", "run", *SMALL]
    arguments = random.choice(
        (
            resume,
            [*resume, "--resume"],
            [*resume, "--resume", "--dry-run"],
            ["evaluate", "run", "--data", "text.txt", "--device", "cpu", "--json"],
            ["generate", "--model", "run", "the cat", "--max-new-tokens", "4", "--device", "cpu"],
            ["convert", "run", "out"],
            ["show", "./run", "--json"],
            ["cost", "./run", "--json"],
            ["runs", ".", "--json"],
            ["runs", "."],
        )
    )

    def change() -> str:
        found = [path for path in files_below(folder / "run") if path.name != "lock"]
        if random.random() < 0.5:  # the few files of the run itself, not those of its checkpoints
            found = [path for path in found if "checkpoints" not in path.parts] or found
        return _damage(found, random, entries=0.2, lexicon=material.language)

    outputs = ["out", "run"] if arguments[0] == "train" else ["out"]
    # `runs` says how each run stands, and a plan estimates: neither has one answer.
    expected = (
        None
        if arguments[0] == "runs" or "--dry-run" in arguments
        else _expected(material, interrupted, arguments, outputs)
    )
    said = [*several(random, change), "interrupted" if interrupted else "finished"]
    return Attempt("", arguments, said, outputs=outputs, expected=expected)


def _expected(material: Material, interrupted: bool, arguments: Sequence[str], outputs: Sequence[str]) -> str:
    """The answer that a run gives undamaged, worked out once."""
    key = (interrupted, *arguments)
    if key not in material.known:
        folder = material.root / f"whole-{len(material.known)}"
        shutil.copytree(material.interrupted if interrupted else material.run, folder)
        ended = material.arena.run(arguments, folder)
        assert ended.status == 0, ended.errors
        material.known[key] = answer_of(arguments, outputs, ended, folder)
        shutil.rmtree(folder)
    return material.known[key]


@kind("text", 8)
def corpus(material: Material, random: Random, folder: Path) -> Attempt:
    """A text to learn from: plain, lines of JSON, packed, or a folder of them."""
    data = _copy(material.corpus, folder)

    def change() -> str:
        return _damage(files_below(data), random, entries=0.15)

    said = several(random, change)
    name = "corpus" if random.random() < 0.5 else "corpus/" + random.choice(("a.txt", "b.jsonl", "c.txt.gz", "d.md"))
    kinds = ("byte-level-bpe", "bpe", "wordpiece", "unigram", "words", "characters")
    arguments = ["tokenizer", "train", name, "--kind", random.choice(kinds), "--vocab", "300", "--out", "out"]
    if random.random() < 0.3:
        tokenizer = _copy(material.tokenizers[1], folder)
        arguments = ["tokenizer", "compare", tokenizer.name, "--data", name, "--json"]
    return Attempt("", arguments, said)


@kind("text", 4)
def labelled(material: Material, random: Random, folder: Path) -> Attempt:
    """Labelled texts."""
    data = _copy(material.labelled, folder)
    model = _copy(next(path for path in material.specifications if path.name == "bert-base.yaml"), folder)
    file = random.choice(files_below(data))
    said = several(random, lambda: mutate_file(file, random))
    given = [
        "--data",
        f"labelled/{file.name}",
        "--out",
        "out",
        "--objective",
        "classification",
        *SMALL,
        "--validation",
        "0.3",
    ]
    return Attempt("", ["train", model.name, *given, "--dry-run", "--json"], said)


COMMANDS: tuple[Sequence[str], ...] = (
    ("show", "gpt2", "--json"),
    ("show", "gpt2", "--diagram", "out.svg"),
    ("show", "model.yaml", "--spec", "yaml"),
    ("cost", "model.yaml", "--seq-len", "32", "--batch", "2", "--device", "H100", "--price-per-hour", "2", "--json"),
    ("cost", "model.yaml", "--source-len", "8", "--convention", "6nd", "--dtype", "float16", "--recompute", "full"),
    ("check", "model.yaml", "--json"),
    ("diff", "model.yaml", "gpt2", "--keys", "--seq-len", "32"),
    ("diff", "gpt2", "llama2-7b", "--lineage"),
    ("history", "--since", "2023"),
    ("presets", "--family", "llama", "--json"),
    ("plan", "model.yaml", "--hardware", "8xH100", "--tokens", "1B", "--mesh", "dp=8", "--seq-len", "64", "--json"),
    ("plan", "model.yaml", "--hardware", "H100", "--hours", "2", "--batch-tokens", "4096", "--write", "out.yaml"),
    ("train", "model.yaml", "--data", "text.txt", "--out", "out", *SMALL, "--dry-run"),
    (
        "train",
        "model.yaml",
        "--data",
        "text.txt",
        "--out",
        "out",
        *SMALL,
        "--lr",
        "1e-3",
        "--clip",
        "1",
        "--params",
        "50k",
        "--dry-run",
    ),
    ("evaluate", "run", "--data", "text.txt", "--held-out", "0.1", "--seq-len", "16", "--device", "cpu", "--json"),
    (
        "generate",
        "--model",
        "run",
        "a cat",
        "--max-new-tokens",
        "3",
        "--temperature",
        "1",
        "--top-k",
        "5",
        "--top-p",
        "0.9",
    ),
    (
        "generate",
        "--model",
        "run",
        "a cat",
        "--max-new-tokens",
        "3",
        "--seed",
        "3",
        "--stop",
        "x",
        "--dtype",
        "bfloat16",
    ),
    ("generate", "--model", "run", "a cat", "--max-new-tokens", "3", "--beams", "2", "--length-penalty", "0.5"),
    ("convert", "run", "out", "--to", "hf", "--class", "llama", "--dtype", "float16", "--shard-size", "30kB"),
    ("embed", "--model", "run", "--text", "a cat", "--pool", "mean", "--out", "out.npy", "--batch-tokens", "64"),
    ("classify", "--model", "run", "--text", "a cat"),
    ("tokenizer", "encode", "--tokenizer", "run/tokenizer", "--text", "the cat", "--json"),
    ("tokenizer", "train", "text.txt", "--vocab", "300", "--min-count", "2", "--special", "<mask>", "--out", "out"),
    ("tokenizer", "audit", "--model", "run", "--data", "text.txt", "--top", "5"),
    ("runs", ".", "--json"),
)


@kind("cli", 14)
def arguments(material: Material, random: Random, folder: Path) -> Attempt:
    """The words of a command line."""
    words = list(random.choice(COMMANDS))
    _surround(material, words, folder)

    def change() -> str:
        i = random.randrange(len(words)) if words else 0
        if not words:
            return "no words"
        match random.choice(("value", "value", "number", "delete", "double", "exchange", "other", "letter")):
            case "number" if numbers := [j for j, word in enumerate(words) if word[:1].isdigit()]:
                i = random.choice(numbers)
                words[i] = random.choice(
                    (
                        "0",
                        "-1",
                        "1e999",
                        "nan",
                        "inf",
                        "-inf",
                        "1e-400",
                        "9" * 400,
                        "9" * 5_000,
                        "1e18",
                        "0x10",
                        "1_0",
                        "٣",
                        "1.5",
                        "2**3",
                        "10B",
                        "5e",
                        "",
                        " 3",
                        "1e400k",
                        "999999999999T",
                    )
                )
            case "value" | "number":
                words[i] = str(random.choice(TEXTS))
            case "delete":
                return f"{words.pop(i)[:40]!r} deleted"
            case "double":
                words.insert(i, words[i])
            case "exchange":
                j = random.randrange(len(words))
                words[i], words[j] = words[j], words[i]
            case "other":
                words[i] = random.choice(random.choice(COMMANDS))
            case _:
                changed = mutate_bytes(words[i].encode("utf-8", "surrogateescape"), random)[0]
                words[i] = changed.decode("utf-8", "surrogateescape")
        return f"word {i} := {words[i][:60]!r}"

    said = several(random, change)
    given = [word.replace("\0", "\\0") for word in words]  # no shell can hand a NUL on
    # Whatever a changed command line is told to write, it may; run and text stay as they are.
    return Attempt("", given, said, outputs=["*"])


def _surround(material: Material, words: Sequence[str], folder: Path) -> None:
    """What a command line reads, in its folder."""
    for name in ("text.txt", "model.yaml"):
        _copy(material.run / name, folder)
    if any(word.startswith("run") for word in words):
        _copy(material.run / "run", folder)


VARIABLES = {
    "COLUMNS": ("0", "-1", "1", "3", "nan", "", "9" * 30, "80", "100000"),
    "LINES": ("0", "x"),
    "TERM": ("dumb", "", "xterm-256color", "nowhere", "\x1b"),
    "NO_COLOR": ("1", ""),
    "LANG": ("C", "", "tr_TR.UTF-8", "x" * 1_000),
    "LC_ALL": ("C", "POSIX", "nowhere"),
    "HOME": (None, "", "nowhere", "/dev/null", "text.txt", "\udcff"),
    "ANYFORMER_CACHE": ("", "/dev/null/x", "text.txt", "nowhere/deep", "loop", "[red]", "\udcff", "x" * 5_000),
    "XDG_CACHE_HOME": ("", "text.txt", "/proc/nowhere"),
    "ANYFORMER_NO_CACHE": (None, "", "0"),
    "TMPDIR": ("nowhere", "text.txt"),
    "PATH": (None, ""),
    "HF_HOME": ("text.txt",),
    "OMP_NUM_THREADS": ("0", "x", "-1"),
    "CUDA_VISIBLE_DEVICES": ("x", "-1", "0"),
    "TZ": ("nowhere", ":/etc/passwd", ""),
    "USER": (None,),
    "PAGER": ("false",),
    "_ANYFORMER_COMPLETE": ("x", "bash_source"),
}


@kind("cli", 6)
def surroundings(material: Material, random: Random, folder: Path) -> Attempt:
    """A valid command with hostile variables, an encoding, or nobody who reads what it prints."""
    words = list(random.choice(COMMANDS))
    _surround(material, words, folder)
    names = random.sample(sorted(VARIABLES), random.choice((0, 1, 1, 2, 3)))
    environment = {name: random.choice(VARIABLES[name]) for name in names}
    if "ANYFORMER_CACHE" in environment or "HOME" in environment or "XDG_CACHE_HOME" in environment:
        environment["ANYFORMER_NO_CACHE"] = None
        (folder / "loop").symlink_to("loop")
    stdout = random.choice(("utf-8", "ascii", "latin-1", CLOSED, UNREAD, "utf-8"))
    said = [f"{name}={'' if value is None else value[:40]!r}" for name, value in environment.items()] + [
        f"stdout {stdout}"
    ]
    return Attempt("", words, said, environment, stdout, outputs=["*"])


@kind("runs", 3)
def answers(material: Material, random: Random, folder: Path) -> Attempt:
    """The answers and figures kept in the user's cache."""
    words = list(
        random.choice([words for words in COMMANDS if words[0] in ("cost", "show", "check") and "--json" in words])
    )
    _surround(material, words, folder)
    environment: dict[str, str | None] = {"ANYFORMER_NO_CACHE": None, "ANYFORMER_CACHE": "kept"}
    kept = material.root / f"kept-{COMMANDS.index(tuple(words))}"
    if kept not in material.known:
        ended = material.arena.run(words, folder, environment)
        assert ended.status == 0, ended.errors
        material.known[kept] = answer_of(words, [], ended, folder)
        shutil.copytree(folder / "kept", kept)
    else:
        _copy(kept, folder, "kept")

    def change() -> str:
        return _damage(files_below(folder / "kept"), random, entries=0.3)

    said = several(random, change)
    return Attempt("", words, said, environment, outputs=["kept"], expected=material.known[kept])


def draw(name: str, material: Material, seed: int, index: int, folder: Path) -> Attempt:
    """Make input number `index` of a kind in an empty folder."""
    folder.mkdir()
    random = Random(f"{name} {seed} {index}")
    attempt = KINDS[name](material, random, folder)
    attempt.kind = name
    return attempt


def shown(words: Sequence[str]) -> str:
    """A command line to be read."""
    import shlex

    return "anyformer " + " ".join(shlex.quote(word) if len(word) < 200 else f"'{word[:60]}…'" for word in words)
