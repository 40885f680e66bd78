"""Make the compiled twin: a copy of the package with extension modules, to be put first on PYTHONPATH.

    python tools/compile_twin.py        .build/compiled, and .build/compiled-engine (the fragment left as Python)
    PYTHONPATH=.build/compiled python -m duobus --version

The sources are copied and compiled there, so a source tree never holds extension modules, and a compile that fails
leaves the last twin as it was. Exit status 2: this machine lacks a compiler, Python's headers or mypyc.
"""

import argparse
import filecmp
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
TWIN = ROOT / ".build" / "compiled"
#: The simulation replaces functions inside the fragment, which compiled code does not look up: there it stays Python.
ENGINE_TWIN = ROOT / ".build" / "compiled-engine"
#: What says how to compile; kept in the twin, to see when it changes.
RECIPE = ("pyproject.toml", "setup.py")
PARTS = (*RECIPE, "README.md", "LICENSE")


def build_script() -> ModuleType:
    """Return ``setup.py`` as a module: it knows what is compiled and what that needs."""
    spec = importlib.util.spec_from_file_location("duobus_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources(folder: Path) -> set[Path]:
    """Return the package's files below a folder, those in Python and their marker, relative to it."""
    return {path.relative_to(folder) for path in (folder / "duobus").rglob("*") if path.suffix in (".py", ".typed")}


def is_fresh(twin: Path, source: Path = ROOT / "src") -> bool:
    """Whether a twin was made, of exactly these sources, by the present recipe and for this Python."""
    expected = sources(source)
    if not is_built_for_this_python(twin) or sources(twin) != expected:
        return False
    pairs = [(source / path, twin / path) for path in expected]
    pairs += [(source.parent / part, twin / part) for part in RECIPE]
    return all(theirs.is_file() and filecmp.cmp(ours, theirs, shallow=False) for ours, theirs in pairs)


def is_built_for_this_python(twin: Path) -> bool:
    """Whether a twin holds extension modules that this interpreter loads."""
    return any((twin / "duobus" / "codec").glob(f"decoder{EXTENSION_SUFFIXES[0]}"))


def compile_into(twin: Path, engine_twin: Path, root: Path = ROOT) -> None:
    """Make both twins of the sources below ``root``, then put them in their places.

    Raises:
        subprocess.CalledProcessError: Translating or compiling failed; its output went to standard error.
    """
    twin.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=twin.parent, prefix="compile-") as name:
        work = Path(name)
        for part in PARTS:
            shutil.copy(root / part, work / part)
        no_leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.pyd")
        shutil.copytree(root / "src", work / "src", ignore=no_leftovers)
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--force"]
        environment = os.environ | {"DUOBUS_COMPILE": "1", "PYTHONPATH": ""}
        subprocess.run(command, cwd=work, env=environment, check=True, stdout=sys.stderr)
        made = work / "src"
        for part in RECIPE:
            shutil.copy(root / part, made / part)
        shutil.copytree(made, work / "engine", ignore=_without_fragment)
        for source, target in ((made, twin), (work / "engine", engine_twin)):
            shutil.rmtree(target, ignore_errors=True)
            source.rename(target)


def _without_fragment(folder: str, names: list[str]) -> list[str]:
    # The mapping reads the fragment's slots and knows the compiled ones only.
    package = Path(folder).as_posix().rpartition("/src/duobus/")[2]
    if package.split("/")[0] != "fragment" and package != "gateway/amqp":
        return []
    return [name for name in names if name.endswith(tuple(EXTENSION_SUFFIXES))]


def main(arguments: list[str] | None = None) -> int:
    """Compile unless what there is is fresh; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="compile even if no source has changed")
    options = parser.parse_args(arguments)
    missing = build_script().missing()
    if missing is not None:
        print(f"The compiled twin cannot be made: {missing}.", file=sys.stderr)
        return 2
    if options.force or not (is_fresh(TWIN) and is_fresh(ENGINE_TWIN)):
        print("Compiling, a minute or so ...", file=sys.stderr)
        try:
            compile_into(TWIN, ENGINE_TWIN)
        except subprocess.CalledProcessError as error:
            print(f"Compiling ended with status {error.returncode}; see above.", file=sys.stderr)
            return 1
    print(f"{TWIN} is the compiled twin: PYTHONPATH={TWIN} duobus --version", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
