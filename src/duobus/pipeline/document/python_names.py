"""Whether a function of Python is where a document says: found in the text of its module, which is not run."""

from __future__ import annotations

import ast
import re
import sys
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_FORM: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def fault_of_function(name: str, folder: Path) -> str | None:
    """What is wrong with ``module:function``, as a sentence; None where the function is there, or cannot be looked at.

    Args:
        name: The module and the function.
        folder: Where modules of the document are, before those of the installed Python.
    """
    if not _FORM.fullmatch(name):
        return f"{name!r} has to be module:function."
    module, _, function = name.partition(":")
    file = _file_of(module, folder)
    if file is None:
        near = get_close_matches(module, [path.stem for path in folder.glob("*.py")], 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"There is no module {module!r} in the folder of the document, nor in this Python.{hint}"
    if file.suffix != ".py":
        return None
    try:
        names = _defined(ast.parse(file.read_text("utf-8")))
    except (SyntaxError, ValueError, OSError) as error:
        return f"The module {module!r} cannot be read: {error}"
    if function in names:
        return None
    near = get_close_matches(function, names, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"The module {module!r} has no function {function!r}.{hint}"


def _file_of(module: str, folder: Path) -> Path | None:
    paths: list[str] | None = [str(folder), *sys.path]
    spec = None
    for end in range(1, len(module.split(".")) + 1):
        spec = PathFinder.find_spec(".".join(module.split(".")[:end]), paths)
        if spec is None:
            return None
        paths = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.origin else None


def _defined(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names
