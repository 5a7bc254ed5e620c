"""The command line's frame: lazy commands, one-line errors, statuses, completion, a user's own parts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from anyformer.cli import main as cli
from anyformer.cli import names
from anyformer.errors import CheckpointError, RunFailed, UsageError

SOURCE = Path(cli.__file__).parents[2]


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, "-m", "anyformer", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[click.Command], None]:
    """Stands in for every command: the frame is under test, not what hangs in it."""

    def put(stand_in: click.Command) -> None:
        monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: stand_in)

    return put


@pytest.fixture
def presets(monkeypatch: pytest.MonkeyPatch) -> None:
    records = ({"name": "llama2-7b", "family": "llama"}, {"name": "gpt2", "family": "gpt2"})
    monkeypatch.setattr(names, "catalogue", lambda of="presets": records if of == "presets" else ())


def test_help_lists_every_command_with_its_line() -> None:
    result = CliRunner().invoke(cli.application, ["--help"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    for name in ("show", "presets", "cost", "train", "evaluate", "generate", "compare", "convert", "tokenizer", "runs"):
        assert f"{name} {cli.COMMANDS[name]}" in lines


def test_whatever_reads_a_model_knows_parts_of_one_s_own() -> None:
    """All commands but those that read no model, or nothing of it that is a part."""
    without = {"calibrate", "completion", "runs", "tokenizer train", "tokenizer encode", "tokenizer compare"}
    for name in cli.COMMANDS:
        command = cli.application.get_command(click.Context(cli.application), name)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {}
        each = {f"{name} {sub}": found for sub, found in inner.items()} or {name: command}
        for words, found in each.items():
            options = {option for parameter in found.params for option in parameter.opts}
            assert ("--import" in options) != (words in without), words


def test_without_arguments_it_helps() -> None:
    result = CliRunner().invoke(cli.application, [])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "compare" in result.stdout


def test_version() -> None:
    result = run("--version")
    assert result.stdout.split() == ["anyformer", "0.1.0"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["presets"]], ids=lambda words: words[0])
def test_nothing_heavy_is_imported_for(arguments: list[str]) -> None:
    if arguments == ["presets"] and not (SOURCE / "anyformer" / "cli" / "presets.py").exists():
        pytest.skip("the command `presets` has not been written yet")
    program = (
        "import atexit, sys; from anyformer.cli.main import main; "
        "atexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr)); "
        f"main({arguments!r})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(result.stderr.partition("LOADED")[2].split())
    assert "anyformer.cli.main" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "matplotlib", "tokenizers", "tiktoken", "safetensors"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no command 'trian' (did you mean 'train'?)"),
        (["--hepl"], "No such option '--hepl'"),
        (["zzz"], "no command 'zzz'; the commands are show, diff, history, presets,"),
    ],
)
def test_a_mistyped_command_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.application, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (UsageError("no such thing"), 2, "error: no such thing\n"),
        (CheckpointError("two\n  lines"), 2, "error: two lines\n"),
        (OSError(28, "No space left on device", "runs/a"), 1, "error: runs/a: No space left on device\n"),
        (RunFailed("loss is NaN at step 7"), 1, "error: loss is NaN at step 7\n"),
        (click.UsageError("pick one."), 2, "error: pick one; see 'anyformer show --help'\n"),
        (click.ClickException("not so"), 2, "error: not so\n"),
        (KeyboardInterrupt(), 130, "\nerror: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_its_status(
    command: Callable[[click.Command], None], raised: BaseException, status: int, line: str
) -> None:
    @click.command("show")
    def fails() -> None:
        raise raised

    command(fails)
    result = CliRunner().invoke(cli.application, ["show"])
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", line)


def test_our_own_mistake_keeps_its_traceback(command: Callable[[click.Command], None]) -> None:
    @click.command()
    def fails() -> None:
        raise ZeroDivisionError

    command(fails)
    assert isinstance(CliRunner().invoke(cli.application, ["show"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("status", [0, 1, 3])
def test_a_command_can_choose_its_status(command: Callable[[click.Command], None], status: int) -> None:
    @click.command()
    @click.pass_context
    def answers(context: click.Context) -> None:
        context.exit(status)

    command(answers)
    assert CliRunner().invoke(cli.application, ["show"]).exit_code == status


@pytest.mark.parametrize("lines", [1, 20_000], ids=["at the last flush", "in the middle"])
def test_a_reader_that_leaves_is_no_error(lines: int) -> None:
    program = (
        "import click, sys; from anyformer.cli import main as m\n"
        f"c = click.Command('show', callback=lambda: [print('line ' * 20) for _ in range({lines})])\n"
        "m.LazyGroup.get_command = lambda self, ctx, name: c\n"
        "sys.stdin.readline()\n"
        "m.main(['show'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.usefixtures("presets")
class TestPresetName:
    @staticmethod
    def command() -> click.Command:
        return click.Command(
            "show", params=[click.Argument(["name"], type=names.PresetName())], callback=lambda name: click.echo(name)
        )

    def test_a_known_name_passes(self, command: Callable[[click.Command], None]) -> None:
        command(self.command())
        assert CliRunner().invoke(cli.application, ["show", "gpt2"]).output == "gpt2\n"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("llama2-7", "no preset 'llama2-7' (did you mean 'llama2-7b'?); `anyformer presets` lists them"),
            ("nowhere/spec", "there is nothing at nowhere/spec"),
            ("my.yaml", "there is nothing at my.yaml"),
            ("here", "no preset 'here'; if you mean the path, write './here'"),
        ],
    )
    def test_an_unknown_name_is_one_line_with_the_remedy(
        self,
        command: Callable[[click.Command], None],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        message: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("here").mkdir()
        command(self.command())
        result = CliRunner().invoke(cli.application, ["show", name])
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("file", ["config.json", "spec.yaml"])
    def test_a_preset_beside_a_model_of_its_name_is_said_to_be_the_preset(
        self, command: Callable[[click.Command], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("gpt2").mkdir()
        command(self.command())
        assert CliRunner().invoke(cli.application, ["show", "gpt2+norm=RMSNorm"]).stderr == ""
        Path("gpt2", file).touch()
        result = CliRunner().invoke(cli.application, ["show", "gpt2+norm=RMSNorm"])
        assert result.stdout == "gpt2+norm=RMSNorm\n"
        assert result.stderr == "gpt2 is the preset of that name; the model in this directory is ./gpt2\n"

    def test_a_path_that_exists_passes(self, command: Callable[[click.Command], None], tmp_path: Path) -> None:
        command(self.command())
        assert CliRunner().invoke(cli.application, ["show", str(tmp_path)]).output == f"{tmp_path}\n"

    def test_the_shell_completes_names(self, command: Callable[[click.Command], None]) -> None:
        command(self.command())
        complete = ShellComplete(cli.application, {}, "anyformer", "_ANYFORMER_COMPLETE")
        assert [item.value for item in complete.get_completions(["show"], "ll")] == ["llama2-7b"]
        assert [item.value for item in complete.get_completions([], "com")] == ["compare", "completion"]
        assert [item.type for item in complete.get_completions(["show"], "./")] == ["file"]


def test_the_catalogue_is_read_from_the_package() -> None:
    file = SOURCE / "anyformer" / "families" / "catalogue.json"
    if not file.exists():
        pytest.skip("the catalogue of presets has not been written yet")
    records = json.loads(file.read_text(encoding="utf-8"))["presets"]
    assert [preset["name"] for preset in names.catalogue()] == [preset["name"] for preset in records]
    assert all(preset["family"] for preset in records)


class TestImportOption:
    @pytest.fixture(autouse=True)
    def _show(self, command: Callable[[click.Command], None]) -> None:
        command(names.import_option(click.Command("show", callback=lambda: click.echo("shown"))))

    @staticmethod
    def show(file: Path, text: str) -> tuple[int, str]:
        file.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(cli.application, ["show", "--import", str(file)])
        return result.exit_code, result.output

    def test_the_file_is_run_and_its_module_known_by_name(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        request.addfinalizer(lambda: sys.modules.pop("parts_of_mine", None))
        assert self.show(tmp_path / "parts_of_mine.py", "ANSWER = 42") == (0, "shown\n")
        assert sys.modules["parts_of_mine"].ANSWER == 42
        # The same file a second time is the same module; another of that name is refused.
        assert self.show(tmp_path / "parts_of_mine.py", "raise RuntimeError") == (0, "shown\n")
        (tmp_path / "other").mkdir()
        status, output = self.show(tmp_path / "other" / "parts_of_mine.py", "")
        assert status == 2
        assert "give the file another name" in output

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("\nx = 1 / 0", "ZeroDivisionError on line 2: division by zero"),
            ("a = 1\nb = (", "SyntaxError on line 2: '(' was never closed"),
            ("from anyformer.errors import SpecError\nraise SpecError('eps=-1')", "eps=-1"),
            ("import sys\nsys.exit(0)", "SystemExit on line 2: 0"),
        ],
    )
    def test_a_file_that_fails_is_one_line(self, tmp_path: Path, text: str, message: str) -> None:
        status, output = self.show(tmp_path / "broken_parts.py", text)
        assert status == 2
        assert output == f"error: --import {tmp_path / 'broken_parts.py'}: {message}\n"
        assert "broken_parts" not in sys.modules

    def test_a_missing_file_is_one_line(self) -> None:
        result = CliRunner().invoke(cli.application, ["show", "--import", "nowhere.py"])
        assert result.exit_code == 2
        assert "'nowhere.py' does not exist" in result.stderr
        assert result.stderr.count("\n") == 1
