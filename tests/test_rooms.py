"""Parses the source and fails on what the rules of the house do not allow: imports, sizes, names, loose ends."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "anyformer"

# Room → rooms that it may import. Everybody may import EVERYBODYS, and nobody the command line or the public face.
EVERYBODYS = {"amounts", "capacity", "errors", "notebook", "screen", "version"}
# What a room calls by `import_module` while it works, never as it is imported: a name is a model's, a kind a part's.
LATE = {"spec": {"descriptions", "hub", "layers"}}
ROOMS: dict[str, set[str]] = {
    "amounts": set(),
    "arguments": set(),
    "axes": set(),
    "errors": set(),
    "version": set(),
    "capacity": set(),
    "notebook": set(),
    "tables": set(),
    "screen": {"tables"},
    "disk": set(),
    "spec": {"disk"},
    "layers": {"spec"},
    "kernels": {"layers", "spec"},
    "cache": {"spec", "layers"},
    "memory": {"spec", "layers", "cache"},
    "new_tokens": {"layers", "cache"},
    "model": {"spec", "layers", "cache", "kernels", "new_tokens"},
    "recipe": {"disk", "spec"},
    "families": {"spec", "layers", "recipe"},
    "resizing": {"spec"},
    "observation": {"spec", "layers", "cache", "model"},
    "costs": {"axes", "disk", "cache", "spec", "layers", "kernels", "recipe", "families", "resizing", "observation"},
    "variants": {"spec", "layers", "families", "resizing"},
    "descriptions": {"cache", "costs", "spec", "layers", "kernels", "model", "recipe", "families", "variants"}
    | {"tables"},
    "text": {"disk"},
    "surgery": {"spec", "layers", "text"},
    "hub": {"disk", "model", "families", "variants", "text", "spec", "layers", "cache", "resizing", "surgery"},
    "training": {"disk", "model", "memory", "recipe", "text", "costs", "hub", "spec", "layers", "families", "resizing"}
    | {"axes", "cache", "generation", "observation"},
    "generation": {"model", "text", "cache", "layers", "spec"},
    "inference": {"disk", "families", "generation", "hub", "layers", "model", "recipe", "spec", "text", "training"}
    | {"new_tokens"},
}
ROOMS["serving"] = {"generation", "inference", "layers", "model", "spec", "text"}
ROOMS["inspection"] = {"disk", "hub", "inference", "layers", "model", "recipe", "spec", "surgery", "text", "training"}
ROOMS["measure"] = set(ROOMS)
ROOMS["study"] = set(ROOMS)
ROOMS["integrations"] = {
    "cache",
    "families",
    "generation",
    "hub",
    "inference",
    "layers",
    "model",
    "recipe",
    "spec",
    "text",
}  # imported by nobody but who asks for it, on the command line too
ROOMS["cli"] = {*ROOMS, "anyformer"}
ROOMS["__main__"] = {"cli"}
ROOMS["anyformer"] = {
    room for room in ROOMS if room not in {"cli", "__main__", "integrations"}
}  # src/anyformer/__init__.py

# The sub-rooms of training: data and objectives ask each other, a file at a time; nothing asks what comes after it.
FLOW: dict[str, set[str]] = {
    "data": {"objectives"},
    "objectives": {"data"},
    "cluster": set(),
    "step": {"cluster", "data", "objectives"},
    "checkpoint": {"cluster", "data", "step"},
    "run": {"cluster", "data", "objectives", "step", "checkpoint"},
}
OBJECTIVES = {"specification"} | {
    path.name for path in (PACKAGE / "training" / "objectives").iterdir() if (path / "loss.py").is_file()
}

# What is known without torch.
LIGHT = ("amounts", "axes", "errors", "notebook", "screen", "version", "disk", "spec", "recipe")
HEAVY = {"torch", "numpy", "scipy", "matplotlib", "tokenizers", "tiktoken", "safetensors"}
LONGEST_FILE = 400  # lines
FORBIDDEN_NAMES = {"utils", "util", "common", "base", "helpers", "helper", "manager", "managers"}
LOOSE_ENDS = re.compile(r"\b(TODO|FIXME|NotImplementedError)\b")


def sources(package: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its dotted name, `anyformer.spec.codec`; a package has the name of its folder."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything imported, in functions and for the type checker too, but LATE."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    working = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                origin = package[: len(package) - level + 1] if level else []
                start = ".".join([*origin, *([module] if module else [])])
                if start == "anyformer":  # `from anyformer import spec`: the room is the name after `import`
                    yield from ((node.lineno, f"{start}.{alias.name}") for alias in aliases)
                else:
                    yield node.lineno, start
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ) if id(node) not in working or room(module) not in LATE.get(room(name), ()):
                yield node.lineno, module


def room(name: str) -> str:
    """`anyformer.spec.codec` → `spec`; the package itself, and the names in it, are the room `anyformer`.

    What an objective says of itself lies beside its loss, in the `__init__` of its folder, but is data: of the room `recipe`.
    """
    match name.split("."):
        case [_]:
            return "anyformer"
        case [_, "training", "objectives", *rest] if rest == [] or (len(rest) == 1 and rest[0] in OBJECTIVES):
            return "recipe"
        case [_, first, *_]:
            return first
    raise ValueError(name)


def flow(package: Path) -> Iterator[str]:
    """Training goes one way: what a later sub-room makes, an earlier one doesn't know."""
    for name, path in sources(package):
        match name.split("."):
            case [_, "training", here, *_] if here in FLOW:
                for line, target in imports(name, path):
                    match target.split("."):
                        case ["anyformer", "training", there, *_] if there not in FLOW[here] | {here}:
                            yield f"{name}:{line}: training.{here} may not import training.{there}"
                        case _:
                            pass
            case _:
                pass


def wrong_imports(package: Path) -> Iterator[str]:
    for name, path in sources(package):
        here = room(name)
        if here not in ROOMS:
            yield f"{path.name}: no room is called '{here}'; tests/test_rooms.py has the table"
            continue
        for line, target in imports(name, path):
            if target.split(".")[0] != "anyformer":
                continue
            there = room(target) if room(target) in ROOMS else "anyformer"
            if there != here and there not in ROOMS[here] | EVERYBODYS:
                yield f"{name}:{line}: {here} may not import {there} ({target})"


def cycles(package: Path) -> Iterator[str]:
    graph: dict[str, set[str]] = {}
    for name, path in sources(package):
        targets = {room(target) for _, target in imports(name, path) if target.startswith("anyformer.")}
        graph.setdefault(room(name), set()).update(targets - {room(name)})
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield " → ".join(reversed(error.args[1]))


def undeclared(package: Path) -> Iterator[str]:
    """A package imported that pyproject.toml does not ask for would be missing on a fresh machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def named(requirements: list[str]) -> set[str]:
        names = {re.split(r"[^\w-]", text, maxsplit=1)[0].lower() for text in requirements}
        imported = {"pyyaml": "yaml", "mlflow-skinny": "mlflow", "lm-eval": "lm_eval"}
        return {imported.get(name, name) for name in names}

    # Triton comes with PyTorch, where that is made for a GPU.
    known = named(project["dependencies"]) | {"anyformer", "triton"} | sys.stdlib_module_names
    extras = project["optional-dependencies"]
    optional = named([text for extra in extras if extra not in ("test", "dev") for text in extras[extra]])
    for name, path in sources(package):
        at_once = {node.lineno for node in ast.parse(path.read_text(encoding="utf-8")).body}
        for line, target in imports(name, path):
            top = target.split(".")[0]
            # An integration is imported by who has its package.
            if top not in known and (top not in optional or (line in at_once and room(name) != "integrations")):
                yield f"{name}:{line}: {target} is not among the dependencies"


def heavy_imports(package: Path) -> Iterator[str]:
    for name, path in sources(package):
        if room(name) in LIGHT:
            for line, target in imports(name, path):
                if target.split(".")[0] in HEAVY:
                    yield f"{name}:{line}: {target} is imported by what must be known without it"


def long_files(package: Path) -> Iterator[str]:
    for name, path in sources(package):
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > LONGEST_FILE:
            yield f"{name}: {length} lines, more than {LONGEST_FILE}: it holds more than one idea"


def empty_names(package: Path) -> Iterator[str]:
    for name, _ in sources(package):
        if FORBIDDEN_NAMES & set(name.split(".")):
            yield f"{name}: this name says nothing of what is inside"


def loose_ends(package: Path) -> Iterator[str]:
    for name, path in sources(package):
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if found := LOOSE_ENDS.search(text):
                yield f"{name}:{line}: {found[0]}"


def two_meanings(package: Path) -> Iterator[str]:
    """A word has one meaning: no two classes are called alike."""
    first: dict[str, str] = {}
    for name, path in sources(package):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (other := first.setdefault(node.name, name)) != name:
                yield f"{name}:{node.lineno}: {node.name} is the name of a class in {other} too"


def unstated_shapes(package: Path) -> Iterator[str]:
    """Nothing checks the shapes of tensors, so that every `forward` must say its own."""
    for name, path in sources(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.FunctionDef)
                and node.name == "forward"
                and "[" not in (ast.get_docstring(node) or "")
            ):
                yield f"{name}:{node.lineno}: this forward states no shape, such as [batch, token, d_model]"


Rule = Callable[[Path], Iterator[str]]
RULES: tuple[Rule, ...] = (
    wrong_imports,
    cycles,
    flow,
    undeclared,
    heavy_imports,
    long_files,
    empty_names,
    loose_ends,
    two_meanings,
    unstated_shapes,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps(rule: Rule) -> None:
    violations = list(rule(PACKAGE))
    assert not violations, "\n" + "\n".join(violations)


def test_the_table_has_no_cycle() -> None:
    graphlib.TopologicalSorter(ROOMS).prepare()


def test_every_room_is_found() -> None:
    """Guards the guard: with the package moved, every rule above would hold of nothing."""
    assert {"errors", "cli", "__main__"} <= {room(name) for name, _ in sources(PACKAGE)}


def test_no_module_loads_the_compiler() -> None:
    """torch._dynamo takes as long to import as all the rest; who compiles imports it then."""
    # Only by those who ask for them, and the last where there is Triton.
    later = re.compile(r"anyformer\.(integrations\b|.*__main__|layers\.vectors$)")
    names = [name for name, _ in sources(PACKAGE) if not later.match(name)]
    code = (
        f"import importlib, sys; list(map(importlib.import_module, {names})); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Each breaks one rule, in a file of its own beside a sound one: (rule, files, what the rule must say).
BROKEN: list[tuple[Rule, dict[str, str], str]] = [
    (wrong_imports, {"spec/codec.py": "from anyformer.layers import norm"}, "spec may not import layers"),
    (wrong_imports, {"spec/codec.py": "from anyformer import model"}, "spec may not import model"),
    (wrong_imports, {"text.py": "import anyformer.hub.load as load"}, "text may not import hub"),
    (wrong_imports, {"recipe.py": "def f():\n    from .costs import card"}, "recipe may not import costs"),
    (wrong_imports, {"layers/norm.py": "from ..cache import Store"}, "layers may not import cache"),
    (wrong_imports, {"layers/__init__.py": "from ..kernels import sdpa"}, "layers may not import kernels"),
    (
        wrong_imports,
        {"resizing.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from anyformer.families import gpt2"},
        "resizing may not import families",
    ),
    (
        wrong_imports,
        {"costs.py": "import importlib\nimportlib.import_module('anyformer.training')"},
        "not import train",
    ),
    (wrong_imports, {"study/report.py": "from anyformer.cli.names import x"}, "study may not import cli"),
    (wrong_imports, {"__init__.py": "from anyformer.cli.main import main"}, "anyformer may not import cli"),
    (wrong_imports, {"training/loop.py": "from anyformer import preset"}, "training may not import anyformer"),
    (wrong_imports, {"errors.py": "import anyformer.spec"}, "errors may not import spec"),
    (wrong_imports, {"spec/part.py": "importlib.import_module('anyformer.hub')"}, "spec may not import hub"),
    (wrong_imports, {"spec/part.py": "def f():\n    import_module('anyformer.model')"}, "spec may not import model"),
    (wrong_imports, {"attic/thing.py": "x = 1"}, "no room is called 'attic'"),
    (
        wrong_imports,
        {
            "training/objectives/masked/__init__.py": "from anyformer.training.objectives.masked.loss import MaskedObjective"
        },
        "recipe may not import training",
    ),
    (
        heavy_imports,
        {"training/objectives/masked/__init__.py": "import torch"},
        "anyformer.training.objectives.masked:1: torch",
    ),
    (
        flow,
        {"training/step/a.py": "from anyformer.training.run import train"},
        "training.step may not import training.run",
    ),
    (flow, {"training/data/a.py": "from ..step import split"}, "training.data may not import training.step"),
    (
        cycles,
        {"layers/a.py": "from anyformer.model import M", "model.py": "from anyformer.layers.a import A"},
        "layers → model",
    ),
    (undeclared, {"hub/load.py": "import transformers"}, "anyformer.hub.load:1: transformers"),
    (undeclared, {"hub/load.py": "import gguf"}, "anyformer.hub.load:1: gguf"),
    (heavy_imports, {"spec/part.py": "def f():\n    import torch.nn"}, "anyformer.spec.part:2: torch.nn"),
    (heavy_imports, {"recipe.py": "from numpy import pi"}, "anyformer.recipe:1: numpy"),
    (long_files, {"model.py": "x = 1\n" * 401}, "anyformer.model: 401 lines"),
    (empty_names, {"layers/utils.py": ""}, "anyformer.layers.utils"),
    (empty_names, {"text/helpers/bpe.py": ""}, "anyformer.text.helpers.bpe"),
    (
        two_meanings,
        {"layers/a.py": "class Pair: ...", "text/b.py": "x = 1\n\n\nclass Pair: ..."},
        "anyformer.text.b:4: Pair is the name of a class in anyformer.layers.a too",
    ),
    (unstated_shapes, {"layers/a.py": "class A:\n    def forward(self, x): ..."}, "anyformer.layers.a:2: this forward"),
    (unstated_shapes, {"layers/a.py": "def forward(x):\n    'The sum of x.'"}, "anyformer.layers.a:1: this forward"),
    (loose_ends, {"model.py": "x = 1  # TODO: two"}, "anyformer.model:1: TODO"),
    (loose_ends, {"model.py": "def f():\n    raise NotImplementedError"}, "anyformer.model:2: NotImplementedError"),
]


def write(package: Path, files: dict[str, str]) -> Path:
    for file, text in files.items():
        path = package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize(("rule", "files", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_rule_is_seen(tmp_path: Path, rule: Rule, files: dict[str, str], says: str) -> None:
    violations = "\n".join(rule(write(tmp_path / "anyformer", files)))
    assert says in violations


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_is_allowed_passes(tmp_path: Path, rule: Rule) -> None:
    files = {
        "__init__.py": "from anyformer.spec import Spec\nfrom anyformer.version import __version__",
        "errors.py": "import difflib",
        "layers/__init__.py": "",
        "layers/norm.py": "import torch\nfrom anyformer.spec.part import Spec\nfrom . import residual\n"
        "def forward(x):\n    'The normed x [token, d_model].'",
        "layers/residual.py": "from ..errors import SpecError\nfrom ..spec import Spec",
        "spec/__init__.py": "from .part import Spec",
        "spec/part.py": "import yaml\nx = 1\n" + "#\n" * (LONGEST_FILE - 2),
        "cli/show.py": "import anyformer\nfrom anyformer import preset\nfrom anyformer.study import report",
        "__main__.py": "from anyformer.cli.main import main",
    }
    assert list(rule(write(tmp_path / "anyformer", files))) == []
