"""Fetch the scripts that the console's pages load, unchanged, from the npm registry.

    python tools/fetch_scripts.py            writes src/duobus/console/static/vendor anew; needs npm
    python tools/fetch_scripts.py --check    compares the files with their SHA-256; needs nothing

The pages need no build step and no Node: the files lie in the repository, with their licences. After a change of a
version below, the program prints the new SHA-256, which then have to be written here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
#: What browsers load is in the package; what only tests load is beside the tests.
PAGES: Final = "src/duobus/console/static/vendor"
TESTS: Final = "tests/integration/console/vendor"


class Script(NamedTuple):
    """A file of a package.

    Attributes:
        package, version, licence: As of the registry.
        member: The file in the package.
        folder: Where the file lies in the repository.
        name: Its name there.
        sha256: Of the file.
    """

    package: str
    version: str
    licence: str
    member: str
    folder: str
    name: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return ROOT / self.folder / self.name


_HTMX: Final = ("htmx.org", "2.0.11", "0BSD")
_UPLOT: Final = ("uplot", "1.6.32", "MIT")
_AXE: Final = ("axe-core", "4.14.1", "MPL-2.0")

SCRIPTS: Final = tuple(
    Script(*package, member, folder, name, sha256)
    for package, folder, member, name, sha256 in (
        (
            _HTMX,
            PAGES,
            "dist/htmx.min.js",
            "htmx.min.js",
            "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
        ),
        (
            _HTMX,
            PAGES,
            "LICENSE",
            "htmx.LICENSE",
            "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
        ),
        (
            _UPLOT,
            PAGES,
            "dist/uPlot.iife.min.js",
            "uPlot.iife.min.js",
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        ),
        (
            _UPLOT,
            PAGES,
            "dist/uPlot.min.css",
            "uPlot.min.css",
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        ),
        (
            _UPLOT,
            PAGES,
            "LICENSE",
            "uPlot.LICENSE",
            "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        ),
        (
            _AXE,
            TESTS,
            "axe.min.js",
            "axe.min.js",
            "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
        ),
        (
            _AXE,
            TESTS,
            "LICENSE",
            "axe.LICENSE",
            "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
        ),
        (
            _AXE,
            TESTS,
            "LICENSE-3RD-PARTY.txt",
            "axe.LICENSE-3RD-PARTY.txt",
            "4f8563870d0fca38bbc3e00b6f670cb7fa9f380ba9f26a7f7d1184a6b18b1653",
        ),
    )
)


def main(arguments: list[str]) -> int:
    """Fetch or check; return the exit status."""
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    if not arguments:
        fetch()
    wrong = faults()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def fetch() -> None:
    """Write every file and the list of files."""
    with tempfile.TemporaryDirectory() as place:
        for package, version in sorted({(script.package, script.version) for script in SCRIPTS}):
            subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=place, check=True, timeout=120)
            with tarfile.open(Path(place) / f"{package}-{version}.tgz") as archive:
                for script in SCRIPTS:
                    if script.package == package:
                        found = archive.extractfile(f"package/{script.member}")
                        assert found is not None
                        script.path.parent.mkdir(parents=True, exist_ok=True)
                        script.path.write_bytes(found.read())
    for folder in sorted({script.folder for script in SCRIPTS}):
        (ROOT / folder / "README.md").write_text(listed(folder), "utf-8")


def faults() -> list[str]:
    """What is wrong with the files that lie there."""
    found = []
    for script in SCRIPTS:
        if not script.path.is_file():
            found.append(f"{script.folder}/{script.name} is missing")
            continue
        digest = hashlib.sha256(script.path.read_bytes()).hexdigest()
        if digest != script.sha256:
            found.append(f"{script.folder}/{script.name} has the SHA-256 {digest}")
    for folder in sorted({script.folder for script in SCRIPTS}):
        readme = ROOT / folder / "README.md"
        if not readme.is_file() or readme.read_text("utf-8") != listed(folder):
            found.append(f"{folder}/README.md is not what tools/fetch_scripts.py writes")
        known = {script.name for script in SCRIPTS if script.folder == folder} | {"README.md"}
        found += [f"{folder}/{path.name} is unknown" for path in (ROOT / folder).iterdir() if path.name not in known]
    return found


def listed(folder: str) -> str:
    """The README of a folder."""
    lines = [
        "# Files of other projects",
        "",
        "`tools/fetch_scripts.py` has fetched these files from the npm registry. The files are unchanged; a test",
        "compares their SHA-256.",
        "",
        "| file | package | version | licence | SHA-256 |",
        "|---|---|---|---|---|",
    ]
    for script in SCRIPTS:
        if script.folder == folder:
            lines.append(
                f"| `{script.name}` | `{script.package}` | {script.version} | {script.licence} | `{script.sha256}` |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
