"""Say so where this Python was compiled without the optimizations that distributions and container images give theirs.

    python tools/python_build.py

pyenv compiles Python plainly unless PYTHON_CONFIGURE_OPTS asks for more. Such a Python takes more processor time for
the same program (docs/explanation/sizing.md). It works as well as any other, so this is a hint and no error.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import PurePath
from typing import Final

HINT: Final = (
    "This Python comes from pyenv, which has compiled it without optimizations. duobus and its tests take less time\n"
    "with that of a distribution, if it is 3.11 or newer: rm -r .venv; make setup PYTHON=/usr/bin/python3"
)


def hint_for(base_prefix: str, configured_with: str) -> str | None:
    """The hint, or None where nothing is known against this Python.

    Args:
        base_prefix: The folder in which the interpreter was installed.
        configured_with: The options of its ``configure``. Debian's name no optimization although its build has them, so
            what is missing here says something about a Python of pyenv only.
    """
    is_plain = "--enable-optimizations" not in configured_with
    return HINT if is_plain and ".pyenv" in PurePath(base_prefix).parts else None


if __name__ == "__main__" and (hint := hint_for(sys.base_prefix, str(sysconfig.get_config_var("CONFIG_ARGS")))):
    print(hint, file=sys.stderr)
