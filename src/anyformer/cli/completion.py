"""`anyformer completion SHELL`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from anyformer.screen import say

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and the names of architectures.

    \b
    anyformer completion bash >> ~/.bashrc
    anyformer completion zsh >> ~/.zshrc
    anyformer completion fish > ~/.config/fish/completions/anyformer.fish
    """  # noqa: D301
    found = get_completion_class(shell)
    assert found is not None
    say(found(context.find_root().command, {}, "anyformer", "_ANYFORMER_COMPLETE").source())
