"""The ``duobus`` command. Each sub-command is a module of its own, imported when it is called.

Importing this module loads neither aiohttp nor cryptography nor a store driver, so that ``--help`` and the start of
the server are quick.
"""

from __future__ import annotations

import gc
import io
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

#: New objects after which the collector looks for garbage while a command runs. Most of what a command makes are
#: modules, which live until it ends: with the interpreter's own number, 700, looking at them again and again took an
#: eighth of the processor time of a start of the server.
COLLECTED_AT: Final = 50_000

#: Sub-command to where its click command is (module and name), and to its line in ``duobus --help``, which is here
#: so that printing it imports none of them.
_COMMANDS = {
    "audit": ("duobus.cli.commands.audit:command", "Read who changed which entity or rule."),
    "backup": ("duobus.cli.commands.backup:command", "Copy everything that a server keeps, while it runs or not."),
    "cluster": (
        "duobus.cli.watch.cluster:command",
        "Tell which server has which messaging store; move stores, drain servers.",
    ),
    "completion": ("duobus.cli.main:completion", "Print what makes a shell complete this command."),
    "console": ("duobus.cli.commands.console:command", "Serve a console for the browser."),
    "demo": ("duobus_demo.command:command", "Send, kill the broker, go on, and count: nothing may be lost."),
    "dlq": (
        "duobus.cli.commands.dlq:command",
        "Look through dead letters, try them again, move, export and remove them.",
    ),
    "doctor": (
        "duobus.cli.watch.doctor:command",
        "Look for what keeps a server from running well, and say what to do.",
    ),
    "fragment": ("duobus.cli.commands.fragment:command", "Tell which fragment is on which messaging store; move one."),
    "key": ("duobus.cli.keys.command:command", "List, show, add, rotate and remove access rules and their keys."),
    "message": ("duobus.cli.commands.message:command", "Send, peek and receive messages."),
    "namespace": ("duobus.cli.commands.entities:namespace", "Show the namespace."),
    "pair": (
        "duobus.cli.commands.pair:command",
        "Tell what a pair of namespaces has in its backlog queues, and what it costs.",
    ),
    "pipeline": (
        "duobus.cli.pipeline.command:command",
        "Run a pipeline on Spark that one document declares: check, plan, run, watch and stop it.",
    ),
    "queue": ("duobus.cli.commands.entities:queue", "Create, show, list, update, purge and delete queues."),
    "relay": (
        "duobus.cli.commands.relay:command",
        "Create, list, update and delete relays; serve applications and ports behind them.",
    ),
    "restore": ("duobus.cli.commands.backup:restore", "Make a data folder from a backup."),
    "rule": ("duobus.cli.commands.entities:rule", "Create, show, list, update and delete rules."),
    "subscription": (
        "duobus.cli.commands.entities:subscription",
        "Create, show, list, update, purge and delete subscriptions.",
    ),
    "session": (
        "duobus.cli.session_commands:command",
        "List the sessions of a queue or subscription; show and set their states.",
    ),
    "syphon": (
        "duobus.cli.commands.syphon:command",
        "Carry messages from backlog queues to where they were meant for.",
    ),
    "serve": ("duobus.cli.commands.serve:command", "Run the broker until SIGTERM or Ctrl-C."),
    "spark": (
        "duobus.cli.commands.spark:command",
        "Jobs over entities on Spark: capture, replay, dead letters, large backlogs.",
    ),
    "store": ("duobus.cli.commands.store:command", "List messaging stores; fail, stall and heal them in a drill."),
    "top": ("duobus.cli.watch.top:command", "Show entities, rates, stores and clients of a server, live."),
    "topic": ("duobus.cli.commands.entities:topic", "Create, show, list, update and delete topics."),
    "topology": ("duobus.cli.commands.topology:command", "Export and import all entities of a namespace."),
    "trust": ("duobus.cli.commands.serve:trust", "Tell what makes each language trust the server's own authority."),
}


class _LazyGroup(click.Group):
    """Imports a sub-command when it is asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the program of this process."""
        gc.set_threshold(COLLECTED_AT)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            # The process ends, and with it all memory: the interpreter would look through every object once more.
            gc.freeze()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # click suggests what is near among the commands that it knows, and it knows none of these.
            near = get_close_matches(args[0], _COMMANDS, 1)
            if near and not args[0].startswith("-"):
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    # click's own option would look the version up whether it is wanted or not.
    if is_wanted and not context.resilient_parsing:
        from importlib.metadata import version

        from duobus.compiled import compiled_rooms

        rooms = compiled_rooms()
        click.echo(f"duobus {version('duobus')}" + (f" (compiled: {', '.join(rooms)})" if rooms else ""))
        context.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def main() -> None:
    """A durable message broker that the Azure Service Bus SDKs talk to."""
    for stream in (sys.stdout, sys.stderr):
        # What is printed is UTF-8, whatever the environment says; tests may have put another kind of stream there.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


# ``duobus completion``: what a shell reads to complete commands, options and their values.

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
def completion(shell: str) -> None:
    """Print what makes a shell complete this command. Changes nothing."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(main, {}, "duobus", _VARIABLE)
    # Without the check of the shell's version that click would make: who reads it may be on another machine.
    click.echo(made.source_template % made.source_vars())
