"""The command `anyformer`: commands are listed without being imported, and every error is one line and a status."""

import errno
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from anyformer.errors import AnyformerError, UsageError, bounded, did_you_mean, out_of_memory
from anyformer.screen import forget_unwritten, on_screen, say
from anyformer.version import __version__

# One line each, stated here, so that `--help` and shell completion import nothing heavy.
COMMANDS: dict[str, str] = {
    "show": "What an architecture is: its parts, its size.",
    "diff": "Where architectures part, and what each difference does.",
    "history": "The field's table: year, norm, positions, activation … of each lineage.",
    "presets": "The published architectures known by name.",
    "check": "Is it a sane design? What cannot work, what follows, what is unusual.",
    "cost": "Parameters, FLOPs, cache and memory of an architecture.",
    "plan": "Does it fit on some hardware, how, and how long does it train?",
    "calibrate": "Measure this machine once, for cost, plan and profile.",
    "profile": "Run a model: measured beside predicted, and where its time goes.",
    "train": "Train an architecture on text.",
    "evaluate": "Nats, perplexity and bits per byte on a text.",
    "inspect": "What a trained model's layers and heads do, and where they look.",
    "generate": "Continue a prompt.",
    "chat": "Talk with a model that was tuned for it.",
    "serve": "A model behind OpenAI's interface.",
    "classify": "What a trained model says of texts: classes, or numbers.",
    "embed": "Texts as vectors, and how alike they are.",
    "compare": "Which architecture is better on your data and budget?",
    "study": "Which claims about architectures hold, by a file of models, sizes, budgets and seeds?",
    "convert": "Bring weights from one format into another.",
    "verify": "Does a checkpoint compute here what it does in transformers?",
    "tokenizer": "Train a tokenizer, or encode text with one.",
    "runs": "The training runs in a folder.",
    "completion": "What makes a shell complete commands and names.",
}


class LazyGroup(click.Group):
    """A group whose commands live in `anyformer.cli.<name>`, each as `command`, imported only when one is run."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> Any:
        """Run and exit with the status; errors that a user can cause are one line on stderr."""
        extra.pop("standalone_mode", None)  # click's own way of exiting, which prints two lines more
        with on_screen(sys.stdout, sys.stderr):
            sys.exit(self._status(args, prog_name, *rest, standalone_mode=False, **extra))

    def _status(self, args: Sequence[str] | None, *rest: Any, **extra: Any) -> int:
        """The status of a command, of which all is printed."""
        try:
            if any("\0" in word for word in args or ()):
                raise UsageError("no argument can hold the character \\x00; leave it out")
            result = super().main(args, *rest, **extra)
            sys.stdout.flush()
        except AnyformerError as error:
            return _failed(str(error), error.exit_status)
        except click.exceptions.NoArgsIsHelpError as error:
            say(error.format_message())
            return 0
        except click.ClickException as error:
            return _failed(_sentence(error), 2)
        except (KeyboardInterrupt, click.Abort):
            return _failed("interrupted", 130)
        except OSError as error:  # a full disk, a folder that cannot be written: the user's to mend, wherever it shows
            _forget_unwritten()
            place = "" if error.filename is None else f"{error.filename}: "
            return _failed(f"{place}{error.strerror or error}", 2 if error.errno == errno.ENAMETOOLONG else 1)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return _failed(f"out of memory; take smaller sizes, or fewer tokens at once ({error})", 1)
        # Outside standalone mode click hands back the status given to ctx.exit(), and what a command returns.
        return result if isinstance(result, int) else 0

    def _main_shell_completion(self, *given: Any, **named: Any) -> None:
        try:
            super()._main_shell_completion(*given, **named)
        except (KeyError, ValueError) as error:
            raise UsageError(f"the shell asks for completions without saying of what: {error}") from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"anyformer.cli.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            known = ", ".join(COMMANDS)
            ctx.fail(f"no command '{name}'{did_you_mean(name, COMMANDS)}; the commands are {known}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


@click.group("anyformer", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="anyformer", message="%(prog)s %(version)s")
def application() -> None:
    """One spec, any Transformer.

    From one piece of data come the model, its cost, its cache, its checkpoints and its comparison with any other.
    """


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> NoReturn:
    """Run the command line and exit: 0; 1, it ran and failed or the answer is no; 2, it could not start.

    `arguments` default to those of the process, `program` to the name it was called by.
    """
    sys.exit(application.main(arguments, program))


def _failed(message: str, status: int) -> int:
    with suppress(OSError, SystemExit):  # nobody listens: the status says it
        say(f"error: {bounded(' '.join(message.split()))}", stderr=True)
    return status


def _forget_unwritten() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            forget_unwritten(stream)


def _sentence(error: click.ClickException) -> str:
    """Click's message, and where help on it is to be had."""
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see '{context.command_path} --help'" if context else message
