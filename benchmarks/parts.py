"""What ``make bench`` measures beside the broker as a whole: rules, fan-out, forwarding and the HTTP interfaces.

    python -m benchmarks.parts                     all of them, some four minutes
    python -m benchmarks.parts --parts rules,fanout
    python -m benchmarks.parts --quick             a smoke run; its figures mean nothing

Each part is a program of its own (``python -m benchmarks.<part>``) that prints JSON. Together they go to
``benchmarks/results/<commit>-parts.json``, those of a quick run to ``local-parts.json``. Exit status 1 means that a
part failed, or that a bound which it checks itself was missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

ROOT: Final = Path(__file__).resolve().parents[1]
#: Part to its arguments, and to those of a smoke run.
PARTS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "rules": (("--json",), ("--json", "--quick")),
    "fanout": ((), ("--rounds", "1", "--seconds", "0.05", "--rules", "2000")),
    "forwarding": ((), ("--messages", "500", "--rounds", "1")),
    "http_interfaces": ((), ("--quick",)),
}


def run(name: str, *, is_quick: bool) -> tuple[Any, int]:
    """Run one part; returns what it printed (None: nothing that is JSON) and its exit status."""
    arguments = PARTS[name][is_quick]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    try:
        return json.loads(done.stdout), done.returncode
    except ValueError:
        return None, done.returncode or 1


def main(arguments: list[str] | None = None) -> int:
    """Measure, write and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="names with commas between")
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds")
    parser.add_argument("--output", help="file for the JSON")
    options = parser.parse_args(arguments)
    names = options.parts.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}: try {', '.join(PARTS)}")
    commit, changed = report.commit(ROOT)
    document: dict[str, Any] = {"commit": commit, "changed": changed, "conditions": report.conditions(Path("/tmp"))}
    failed = []
    for name in names:
        document[name], status = run(name, is_quick=options.quick)
        if status:
            failed.append(name)
    document["failures"] = failed
    file = "local-parts.json" if options.quick else f"{commit}-parts.json"
    output = Path(options.output) if options.output else ROOT / "benchmarks" / "results" / file
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
