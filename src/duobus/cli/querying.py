"""``--query``: a JMESPath expression over what a command prints, as in ``az``.

The option leaves what it was given in the context of the command, where the printer finds it: no command hands it on.
"""

from __future__ import annotations

from typing import Any, Final

import click

_KEY: Final = "duobus.cli.query"


def _read(context: click.Context, _option: click.Parameter, text: str | None) -> None:
    if text is None or context.resilient_parsing:
        return
    import jmespath
    from jmespath.exceptions import JMESPathError

    try:
        context.meta[_KEY] = jmespath.compile(text)
    except JMESPathError as error:
        raise click.BadParameter(f"{text!r} is no JMESPath expression: {str(error).splitlines()[0]}") from None


query_option: Final = click.option(
    "--query",
    metavar="JMESPATH",
    expose_value=False,
    callback=_read,
    help="Print what this expression finds in it, as in [].name or [?status=='Active'].",
)


def chosen_query() -> Any:
    """The compiled expression of the command that runs, or None."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_KEY)


def searched(query: Any, data: Any) -> Any:
    """What an expression finds; a function in it that does not fit the data is an error of the one who wrote it."""
    from jmespath.exceptions import JMESPathError

    try:
        return query.search(data)
    except JMESPathError as error:
        raise click.UsageError(f"--query does not fit what was found: {error}") from None
