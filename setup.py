"""Adds the compiled twin to a build when DUOBUS_COMPILE=1 asks for it; all else stands in pyproject.toml.

    DUOBUS_COMPILE=1 pip install .      extension modules beside the very same sources, in the wheel only
    make compile                        the same into .build/compiled, a copy that no source tree is mixed with

Without it, or without this file, wheels are pure.
"""

import os
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
TABLE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["duobus"]["compiled"]

#: Commands of a build that only ask for metadata: what compiling needs is not there yet.
_ASKING = {"egg_info", "dist_info", "sdist"}


def modules() -> list[str]:
    """Return the files to compile, relative to ``src``."""
    source = ROOT / "src"
    found = {path for pattern in TABLE["modules"] for path in source.glob(pattern)}
    plain = {path for pattern in TABLE["plain"] for path in source.glob(pattern)}
    return sorted(path.relative_to(source).as_posix() for path in found - plain)


def missing() -> str | None:
    """Say what compiling needs and this machine lacks; None when it has everything."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"the C compiler {compiler!r} is not installed (Debian and Ubuntu: apt-get install gcc)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return f"Python.h is not in {sysconfig.get_path('include')} (Debian and Ubuntu: apt-get install python3-dev)"
    try:
        import mypyc.build  # noqa: F401
        import setuptools  # noqa: F401 - from Python 3.12 on a fresh venv has none
    except ImportError as error:
        return f"{error.name} is not installed (pip install {TABLE['requires']!r} 'setuptools>=69')"
    return None


def extensions() -> list[Any]:
    """Translate the modules to C; one shared library holds them all, so that they call each other directly."""
    what = missing()
    if what is not None:
        raise SystemExit(f"duobus cannot be compiled: {what}. Without DUOBUS_COMPILE=1 it installs as pure Python.")
    from mypyc.build import mypycify

    # `make check` looks at the types, with every dependency there; an isolated build has none of them.
    flags = ["--config-file=", "--ignore-missing-imports"]
    os.environ["MYPYPATH"] = str(ROOT / "src")
    return mypycify(
        [*flags, *(f"src/{name}" for name in modules())], group_name="duobus", opt_level=TABLE["optimization"]
    )


if __name__ == "__main__":
    from setuptools import setup

    wanted = os.environ.get("DUOBUS_COMPILE") == "1"
    if wanted and "editable_wheel" in sys.argv:
        raise SystemExit("an editable install is never compiled, its source tree would hold both: use `make compile`")
    setup(
        ext_modules=extensions() if wanted and not _ASKING.intersection(sys.argv) else [],
        setup_requires=[TABLE["requires"]] if wanted else [],
    )
