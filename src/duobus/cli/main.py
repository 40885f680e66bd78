"""The ``duobus`` command. Each sub-command is a module of its own, imported when it is called.

Importing this module loads neither aiohttp nor cryptography nor a store driver, so that ``--help`` and the start of
the server are quick.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from importlib.metadata import version

import click

#: Sub-command to module, whose ``command`` is the click command, and to its line in ``duobus --help``, which is here
#: so that printing it imports none of them.
_COMMANDS = {
    "audit": ("duobus.cli.commands.audit", "Read who changed which entity or rule."),
    "backup": ("duobus.cli.commands.backup", "Copy everything that a server keeps, while it runs or not."),
    "completion": ("duobus.cli.completion", "Print what makes a shell complete this command."),
    "demo": ("duobus_demo.command", "Send, kill the broker, go on, and count: nothing may be lost."),
    "dlq": ("duobus.cli.commands.dlq", "Look through dead letters, try them again, move, export and remove them."),
    "fragment": ("duobus.cli.commands.fragment", "Tell which fragment is on which messaging store; move one."),
    "message": ("duobus.cli.commands.message", "Send, peek and receive messages."),
    "namespace": ("duobus.cli.commands.namespace", "Show the namespace."),
    "pair": (
        "duobus.cli.commands.pair",
        "Tell what a pair of namespaces has in its backlog queues, and what it costs.",
    ),
    "queue": ("duobus.cli.commands.entities", "Create, show, list, update and delete queues."),
    "restore": ("duobus.cli.commands.restore", "Make a data folder from a backup."),
    "rule": ("duobus.cli.commands.rule", "Create, show, list, update and delete rules."),
    "subscription": ("duobus.cli.commands.subscription", "Create, show, list, update and delete subscriptions."),
    "syphon": ("duobus.cli.commands.syphon", "Carry messages from backlog queues to where they were meant for."),
    "serve": ("duobus.cli.commands.serve", "Run the broker until SIGTERM or Ctrl-C."),
    "spark": (
        "duobus.cli.commands.spark",
        "Jobs over entities on Spark: capture, replay, dead letters, large backlogs.",
    ),
    "store": ("duobus.cli.commands.store", "List messaging stores; fail, stall and heal them in a drill."),
    "topic": ("duobus.cli.commands.topic", "Create, show, list, update and delete topics."),
    "topology": ("duobus.cli.commands.topology", "Export and import all entities of a namespace."),
    "trust": ("duobus.cli.commands.trust", "Tell what makes each language trust the server's own authority."),
}


class _LazyGroup(click.Group):
    """Imports a sub-command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(_COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    # click's own option would look the version up whether it is wanted or not.
    if is_wanted and not context.resilient_parsing:
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
