"""What the documentation says is true: commands parse, Python runs, links lead somewhere, tables are up to date."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from anyformer.cli.main import COMMANDS, application
from anyformer.cli.names import PresetName, is_path
from anyformer.recipe import RECIPES
from tests.test_rooms import ROOMS
from tests.test_tables import shares_as_shown
from tests.warm import python
from tools import performance
from tools.catalogue import DATA, PAGE, page

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = "<!-- not run -->"
every_page = pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])


class Block(NamedTuple):
    """A fenced block: its language, its text, and whether the line before it lets it be run."""

    language: str
    text: str
    run: bool


def blocks(path: Path) -> Iterator[Block]:
    text, at = "\n" + path.read_text(encoding="utf-8"), 0
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for match in fence.finditer(text):
        before = text[at : match.start()].rstrip().rpartition("\n")[2]
        yield Block(match[1], match[2], before != NOT_RUN)
        at = match.end()


def prose(path: Path) -> str:
    """Return the page without its fenced and indented blocks."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def commands(path: Path) -> Iterator[str]:
    """Yield the anyformer command lines of a page: whole lines of blocks, and `anyformer …` in the text."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [line for block in blocks(path) if block.language in ("", "sh") for line in block.text.splitlines()]
    for line in [*fenced, *(line for line in text.splitlines() if line.startswith("    "))]:
        if re.match(r"(\S*/)?anyformer ", line.strip()):
            yield line.strip()
    for line in re.findall(r"`(anyformer [^`]+)`", prose(path)):
        named_only = len(line.split()) == 2 or re.search(r" [A-Z]+\b", line)  # `anyformer show NAME`
        yield f"{line} …" if named_only and "…" not in line else line


def check(line: str) -> None:
    """Parse a command line as the command itself would, without running it; paths need not exist."""
    words = shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:]
    command: click.Command = application
    context = click.Context(command, info_name="anyformer")
    while isinstance(command, click.Group):
        name, *words = words
        if name in ("--help", "--version"):
            return
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r} in: {line}"
        command, context = found, click.Context(found, parent=context, info_name=name)
    if "…" in line:
        return
    values, left, _ = command.make_parser(context).parse_args(list(words))
    assert not left or "--help" in words, f"{left} is too much in: {line}"
    for parameter in command.params:
        given: Any = values.get(parameter.name or "")
        if given is None or given == ():
            assert not parameter.required, f"{parameter.name} is missing in: {line}"
        elif isinstance(parameter.type, PresetName):
            for value in given if isinstance(given, tuple) else (given,):
                assert is_path(str(value)) or parameter.type.convert(value, parameter, context) == value
        elif not isinstance(parameter.type, click.Path) and not isinstance(given, bool):
            parameter.type_cast_value(context, given)
        if parameter.name == "recipe" and given is not None:
            assert is_path(str(given)) or given in RECIPES, line


@every_page
def test_commands_parse(path: Path) -> None:
    for line in commands(path):
        try:
            check(line)
        except click.ClickException as error:
            pytest.fail(f"{path.name}: {line}: {error.format_message()}")


def test_the_site_has_every_page() -> None:
    contents = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))["CONTENTS"]
    named = {page for pages in contents.values() for page in pages}
    assert {str(path.relative_to(ROOT).with_suffix("")) for path in PAGES} - named == {"README"}


def test_every_command_is_documented() -> None:
    told = {shlex.split(line, comments=True)[1] for path in PAGES for line in commands(path) if "…" not in line}
    assert told >= set(COMMANDS)


WRONG = {
    "anyformer shew gpt2": "no command 'shew'",
    "anyformer show gpt5": "no preset 'gpt5'",
    "anyformer show gpt2 --sepc yaml": "--sepc",
    "anyformer show gpt2 --spec xml": "xml",
    "anyformer train llama2 --tokens many": "'many'",
    "anyformer generate": "model is missing",
    "anyformer train llama2 --recipe smal": "smal",
}


@pytest.mark.parametrize(("line", "said"), WRONG.items())
def test_a_wrong_command_is_seen(line: str, said: str) -> None:
    with pytest.raises((click.ClickException, AssertionError)) as caught:
        check(line)
    error = caught.value
    assert said in (error.format_message() if isinstance(error, click.ClickException) else str(error))


@every_page
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), f"{path.name} links to {target}"
            if heading:
                headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
                assert heading in anchors, f"{path.name} links to {target}"


@every_page
def test_python_compiles(path: Path) -> None:
    for block in blocks(path):
        if block.language == "python":
            compile(block.text, path.name, "exec")


@every_page
def test_python_runs(path: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order, in one new process and an empty folder; `<!-- not run -->` spares one."""
    code = "\n\n".join(block.text for block in blocks(path) if block.language == "python" and block.run)
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    done = python("page.py", cwd=tmp_path, environment={"ANYFORMER_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr[-2000:]


def in_yaml(start: str) -> list[str]:
    found = [block for path in PAGES for block in blocks(path) if block.language == "yaml"]
    return [block.text for block in found if block.text.startswith(start)]


def test_specifications_in_yaml_can_be_read(tmp_path: Path) -> None:
    import anyformer as af

    specs = in_yaml("anyformer:")
    assert specs
    for text in specs:
        (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
        spec = af.load_spec(tmp_path / "spec.yaml")
        assert af.loads(af.dumps(spec)) == spec
        assert af.cost(spec).parameters.total == sum(p.numel() for p in af.build(spec, device="meta").parameters())


def test_recipes_in_yaml_can_be_read() -> None:
    from anyformer import recipe

    recipes = in_yaml("recipe:")
    assert recipes
    for text in recipes:
        recipe.loads(text).learning_rates(d_model=64)


def test_the_catalogue_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(DATA.read_text(encoding="utf-8"))["presets"]), (
        "write it again with `make catalogue`"
    )


def test_the_page_of_benchmarks_is_up_to_date() -> None:
    assert performance.PAGE.read_text(encoding="utf-8") == performance.page(), "run `python tools/performance.py` again"


def section(page_name: str, heading: str) -> str:
    """Return what stands below a heading of a page of docs/."""
    text = (ROOT / "docs" / page_name).read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def keys_of(heading: str) -> set[str]:
    """Return the keys, first column, of a section of docs/json.md."""
    cells = re.findall(r"^\| (`[^|]*) \|", section("json.md", heading), flags=re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([\w-]+)`", cell)}


Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Return what a command prints with --json, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            application.main([*arguments, "--json"], "anyformer")
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return json.loads(out)

    return run


def test_json_keys_of_architectures(answer: Answer) -> None:
    assert keys_of("presets") == {*(found := answer("presets")), *found["presets"][0], *found["undisclosed"][0]}
    found = answer("show", "gpt2")
    assert keys_of("show") == {*found, *found["card"][0], *answer("show", "gpt-4")}
    found = answer("check", "gpt2")
    field = found["field"][0]
    assert keys_of("check") == {*found, *found["findings"][0], *field, *field["breakers"][0]}
    found = answer("cost", "gpt2")
    inner = ("parameters", "activations", "state")
    assert keys_of("cost") == {*found, *found["cache"][0], *(key for name in inner for key in found[name])}


def test_json_keys_of_differences(answer: Answer) -> None:
    found = answer("diff", "gpt2", "gpt2-medium")
    effect = found["effects"]["d_ff"]
    rows, totals, keys = found["rows"][0], found["totals"][0], found["keys"][0]
    assert keys_of("diff") == {*found, *rows, *totals, *effect, *keys}
    assert {*answer("diff", "gpt2", "opt", "llama")} == {*found} - {"effects", "together", "keys"}
    found = answer("diff", "gpt2", "gpt2-medium", "--lineage")
    step = found["steps"][0]
    assert keys_of("diff --lineage") == {*found, *step, *step["rows"][0], "names"}
    assert keys_of("diff --as-variant") == {*answer("diff", "gpt2", "gpt2-medium", "--as-variant")}
    found = answer("history")
    marked = next(entry for entry in found["entries"] if entry["marks"])
    assert keys_of("history") == {*found, *marked, *marked["marks"][0]}
    found = answer("history", "--claims")
    assert keys_of("history --claims") == {*found, *found["claims"][0]}


@shares_as_shown
@pytest.mark.parametrize("path", ["README.md", "docs/diff.md"])
def test_differences_are_as_shown(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    shown = re.findall(r"^    anyformer (diff [^\n]+)\n\n```text\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    for command, block in shown:
        with pytest.raises(SystemExit):
            application.main(command.split(), "anyformer")
        printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
        assert block.rstrip() == printed.rstrip()
    assert len(shown) == 1


def test_json_keys_of_runs(tmp_path: Path, answer: Answer) -> None:
    text = "".join(f"{n} sheep and {n + 1} goats went up the hill.\n" for n in range(400))
    (tmp_path / "sheep.txt").write_text(text, encoding="utf-8")
    sizes = ("--params", "50k", "--tokens", "2k", "--seq-len", "32", "--batch-tokens", "256")
    data = ("--data", "sheep.txt")
    assert keys_of("tokenizer train") == set(
        answer("tokenizer", "train", "sheep.txt", "--vocab", "300", "--out", "tok")
    )
    assert keys_of("tokenizer encode") == set(answer("tokenizer", "encode", "--tokenizer", "tok", "--text", "a"))
    found = answer("tokenizer", "compare", "words", "characters", "--data", "sheep.txt", "--vocab", "50")
    assert keys_of("tokenizer compare") == {*found, *found["tokenizers"][0]}
    train = ("train", "llama2", *data, "--tokenizer", "tok", *sizes, "--out", "runs/a")
    assert keys_of("train --dry-run") == set(answer(*train, "--dry-run"))
    found = answer(*train)
    assert keys_of("train") == {*found, *found["validation"]}
    lines = (tmp_path / "runs" / "a" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert keys_of("metrics.jsonl") == {key for line in lines for key in json.loads(line)}
    found = answer("runs", "runs")
    assert keys_of("runs") == {*found, *found["runs"][0]}
    assert keys_of("evaluate") == set(answer("evaluate", "runs/a", *data))
    assert keys_of("generate") == set(answer("generate", "1 sheep", "--model", "runs/a", "--max-new-tokens", "4"))
    found = answer("compare", "gpt2", "llama2", *data, "--tokenizer", "tok", *sizes, "--out", "cmp")
    row = found["rows"][0]
    assert keys_of("compare") == {
        *found,
        *row,
        *row["finding"],
        *row["finding"]["score"],
        *found["baselines"][0],
    }


def test_the_readme_counts_what_there_is() -> None:
    from anyformer.families import FAMILIES, PRESETS
    from anyformer.families.gguf import tables

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"GGUF files of {len({row.architecture for row in tables.DIALECTS.values()})} architectures" in text
    assert f"{len(PRESETS)} presets of {len({each.family for each in PRESETS.values()})} families" in text
    assert f"directories of {len(FAMILIES)} model types" in text


def test_the_rooms_are_those_of_the_house() -> None:
    lines = re.findall(r"^\| `([\w.]+)` \| .* \| (.*?) ?\|$", section("architecture.md", "Rooms"), flags=re.MULTILINE)
    told = {name.removesuffix(".py"): allowed for name, allowed in lines}
    assert set(told) == set(ROOMS) - {"errors", "version", "__main__", "anyformer"}
    for name, allowed in told.items():
        if not allowed.startswith("everything"):
            assert set(re.findall(r"`(\w+)`", allowed)) == ROOMS[name], name


def test_every_law_is_told() -> None:
    told = set(re.findall(r"`(test_\w+\.py)`", section("architecture.md", "The laws")))
    assert told == {path.name for path in (ROOT / "tests" / "laws").glob("test_*.py")}


def test_every_kind_of_part_is_told() -> None:
    from anyformer.layers import (
        DistributionSpec,
        Mask,
        ProjectionSpec,
        QueryScaleSpec,
        RotaryScalingSpec,
        ScoreSpec,
        ValueSpec,
    )
    from anyformer.spec import ConnectionSpec, InitSpec, MapSpec, MixerSpec, ResidualSpec, Spec, TermSpec

    choices = (Mask, ProjectionSpec, RotaryScalingSpec, ScoreSpec, InitSpec, DistributionSpec, MapSpec, MixerSpec)
    known = [
        kind
        for kind in Spec.kinds.values()
        if issubclass(kind, (*choices, ConnectionSpec, QueryScaleSpec, ResidualSpec, TermSpec, ValueSpec))
    ]
    ours = sorted(kind.kind for kind in known if not kind.abstract and kind.__module__.startswith("anyformer."))
    table = "\n".join(
        line for line in section("spec-language.md", "What there is").splitlines() if line.startswith("|")
    )
    assert sorted(re.findall(r"`(\w+)`", table)) == ours


def reading() -> Iterator[tuple[str, list[str]]]:
    """(file, the lines quoted of it) of each numbered step of reading.md."""
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    for step in re.split(r"^### \d+\. ", text, flags=re.MULTILINE)[1:]:
        (file,) = re.findall(r"^\[`[\w/.]+`\]\(\.\./(src/anyformer/[\w/.]+)\)", step)
        (quoted,) = re.findall(r"^```py\n(.*?)^```$", step, flags=re.MULTILINE | re.DOTALL)
        yield file, [line for line in quoted.splitlines() if line != "…"]


def test_a_newcomer_reads_at_most_twenty_files() -> None:
    files = [file for file, _ in reading()]
    assert 15 <= len(set(files)) == len(files) <= 20


@pytest.mark.parametrize(("file", "quoted"), list(reading()), ids=[file for file, _ in reading()])
def test_what_a_newcomer_is_shown_stands_there(file: str, quoted: list[str]) -> None:
    """In this order, whatever stands between."""
    lines = iter((ROOT / file).read_text(encoding="utf-8").splitlines())
    missing = [line for line in quoted if not any(there.startswith(line) for there in lines)]
    assert not missing, f"{file} does not have, or not in this order: {missing[0]}"
