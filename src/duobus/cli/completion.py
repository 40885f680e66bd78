"""``duobus completion``: what a shell reads to complete commands, options and their values."""

from __future__ import annotations

from typing import Final

import click

_EXAMPLE: Final = """
\b
Example:
  duobus completion bash > ~/.local/share/bash-completion/completions/duobus
  duobus completion zsh > ~/.zfunc/_duobus
  duobus completion fish > ~/.config/fish/completions/duobus.fish
"""

#: What the script sets when it asks the command for completions.
_VARIABLE: Final = "_DUOBUS_COMPLETE"


@click.command(name="completion", epilog=_EXAMPLE)
@click.argument("shell", metavar="shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print what makes a shell complete this command. Changes nothing."""
    from click.shell_completion import get_completion_class

    from duobus.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(main, {}, "duobus", _VARIABLE)
    # Without the check of the shell's version that click would make: who reads it may be on another machine.
    click.echo(made.source_template % made.source_vars())
