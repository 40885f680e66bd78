"""What groups of commands say to somebody who does not know their commands."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from duobus.cli.main import main


def groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from groups(found, (*path, name))


@pytest.mark.parametrize("path", list(groups(main)), ids=" ".join)
def test_the_commands_of_a_group_are_told_in_whole_sentences(path: tuple[str, ...]) -> None:
    told = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output
    commands = told.partition("Commands:\n")[2].partition("Example:")[0]
    assert commands
    assert "..." not in commands


def test_a_command_that_is_nearly_right_is_suggested() -> None:
    for words, near in ((["queu", "list"], "queue"), (["queue", "lst"], "list"), (["sesion"], "session")):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
        assert f"Did you mean {near!r}?" in done.stderr


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    for word in ("xyzzy", "--queu"):
        done = CliRunner().invoke(main, [word])
        assert done.exit_code == 2
        assert "Did you mean 'queue'" not in done.stderr
