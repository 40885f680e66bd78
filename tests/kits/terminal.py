"""Terminals in which a test types what a page says: a shell of its own, with nothing from the environment of the tests.

They stand in a network that has a loopback and nothing else, so that the ports of the pages are free, and what would
load packages from a registry is replaced: ``make setup`` and ``python3 -m venv`` make an environment with the packages
that the tests have, and ``pip`` notes what it was asked for.
"""

from __future__ import annotations

import os
import pty
import re
import select
import site
import subprocess
import sys
import sysconfig
import termios
import threading
import time
from pathlib import Path
from typing import Final

from kits.published import Island
from kits.spark_start import JVM_VARIABLES

ROOT: Final = Path(__file__).resolve().parents[2]
SHELL_PROMPT: Final = "page$ "
PYTHON_PROMPTS: Final = (">>> ", "... ")
#: In the variable that ``pyspark`` reads: with a folder for Spark's settings among its JARs, the JVM could not begin
#: from its archive of classes.
SPARK_DEFAULTS: Final = " ".join(
    f"--conf {setting}"
    for setting in (
        "spark.ui.enabled=false",
        "spark.ui.showConsoleProgress=false",
        "spark.sql.codegen.wholeStage=false",
        "spark.driver.memory=1g",
        "spark.hadoop.fs.file.impl=org.apache.hadoop.fs.RawLocalFileSystem",
    )
)


class Terminal:
    """A shell, and what runs in it; what is typed waits for the prompt before it."""

    def __init__(self, island: Island, folder: Path, tools: Path) -> None:
        """``folder`` is where the shell stands and its home; ``tools`` comes first on its path."""
        # What was activated for the tests is not on the path of a fresh shell.
        path = [entry for entry in os.environ.get("PATH", os.defpath).split(":") if not entry.startswith(sys.prefix)]
        environment = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": ":".join([str(tools), *path]),
            "PS1": SHELL_PROMPT,
            "TERM": "dumb",
            # Newer versions of Python draw their prompt anew at each key.
            "PYTHON_BASIC_REPL": "1",
            # What makes Spark quick to start; nothing of it changes what a page gets.
            "PYSPARK_SUBMIT_ARGS": f"{SPARK_DEFAULTS} pyspark-shell",
        }
        # Where ``spark_start`` has set them, Spark's home is one of the tests, and its JVM is quick to start.
        for name in ("JAVA_HOME", "SPARK_HOME", *JVM_VARIABLES):
            if name in os.environ:
                environment[name] = os.environ[name]
        self._side, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        shell = ("setsid", "--ctty", "--wait", "bash", "--norc", "--noprofile", "--noediting", "-i")
        self._process = subprocess.Popen(
            [*island.within(folder), *shell], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._grown = threading.Condition()
        self._read_to = 0
        #: All that was shown.
        self.shown = ""
        # The prompt that waits for a line, if one does.
        self._prompt = ""
        self._is_closing = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._until(SHELL_PROMPT)

    def _read(self) -> None:
        while not self._is_closing:
            # A thread that waits in a read would keep the terminal open.
            if not select.select([self._side], [], [], 0.1)[0]:
                continue
            try:
                told = os.read(self._side, 65536)
            except OSError:  # the shell is gone
                return
            with self._grown:
                self.shown += told.decode("utf-8", "replace").replace("\r\n", "\n")
                self._grown.notify_all()

    def _until(self, *endings: str, limit_s: float = 120.0) -> str:
        """Wait until a line begins with one of ``endings``; returns what came since the last call.

        Such a prompt does not have to stand last: a JVM may log behind it, and that belongs to the next call.
        """
        prompt = re.compile(rf"^(?:\(\S+\) )?({'|'.join(map(re.escape, endings))})", re.MULTILINE)
        end_s = time.monotonic() + limit_s
        with self._grown:
            # Searched in what is new: there, what follows a prompt begins a line.
            while not (seen := prompt.search(self.shown[self._read_to :])):
                if not self._grown.wait(end_s - time.monotonic()):
                    raise AssertionError(f"no {endings!r} within {limit_s:g} s after:\n{self.shown[-3000:]}")
            found = self.shown[self._read_to : self._read_to + seen.end()]
            self._read_to += seen.end()
            self._prompt = seen[1]
        return found

    def wait_for(self, text: str, *, count: int = 1, limit_s: float = 60.0) -> None:
        """Wait until what runs there has shown ``text`` since the last prompt, ``count`` times."""
        end_s = time.monotonic() + limit_s
        with self._grown:
            while self.shown.count(text, self._read_to) < count:
                if not self._grown.wait(end_s - time.monotonic()):
                    raise AssertionError(f"no {text!r} within {limit_s:g} s after:\n{self.shown[-3000:]}")

    def _type(self, line: str) -> None:
        self._prompt = ""
        os.write(self._side, line.encode() + b"\n")

    def shell(self, block: str, *, starts: str = "") -> str:
        """Enter a block's lines; with ``starts`` the last one is left running as soon as it shows that text.

        A last line ``python`` leads to Python's prompt. Returns what was shown.
        """
        lines = block.strip("\n").split("\n")
        told = []
        for number, line in enumerate(lines, start=1):
            self._type(line)
            if starts and number == len(lines):
                self.wait_for(starts)
            elif re.fullmatch(r"(\S*/)?python", line):
                told.append(self._until(*PYTHON_PROMPTS))
            else:
                told.append(self._until(SHELL_PROMPT))
        return "".join(told)

    def python(self, block: str) -> str:
        """Type a block at Python's prompt, with the empty line that ends the last statement; returns what was shown."""
        told = ""
        for line in (*block.rstrip("\n").split("\n"), ""):
            self._type(line)
            told += self._until(*PYTHON_PROMPTS)
        assert "Traceback" not in told, told
        return told

    def leave_python(self) -> None:
        self._type("exit()")
        self._until(SHELL_PROMPT)

    def interrupt(self) -> str:
        """Press Ctrl-C, and wait for the shell; returns what was shown since the program began."""
        os.write(self._side, b"\x03")
        return self._until(SHELL_PROMPT)

    def close(self) -> None:
        """Stop what was left running, and hang up. A broker that only loses its terminal would go on."""
        try:
            # At its prompt, Python does not hear Ctrl-C where the tests run in the background of a shell.
            if self._prompt not in PYTHON_PROMPTS:
                os.write(self._side, b"\x03")
                self._until(SHELL_PROMPT, *PYTHON_PROMPTS, limit_s=60)
            if self._prompt in PYTHON_PROMPTS:
                self.leave_python()
            self.shell("kill $(jobs -p) 2>/dev/null; wait")
        except (AssertionError, OSError):
            pass  # the test has failed, and says why
        self._is_closing = True
        self._reader.join()
        os.close(self._side)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def make_tools(folder: Path) -> Path:
    """Make the programs that stand in for what loads packages; ``folder/asked`` tells what pip was asked for."""
    tools = folder / "tools"
    tools.mkdir()
    real = sys._base_executable  # type: ignore[attr-defined]
    packages = [*site.getsitepackages(), sysconfig.get_path("purelib"), str(ROOT / "src")]
    finish = tools / "finish_environment"
    _program(
        finish,
        f"""#!{real}
import sys
from pathlib import Path

environment = Path(sys.argv[1]).resolve()
(packages,) = environment.glob("lib/python*/site-packages")
(packages / "packages-of-the-tests.pth").write_text({chr(10).join(dict.fromkeys(packages))!r})
for name, text in {{
    "duobus": f"#!{{environment}}/bin/python\\nfrom duobus.cli.main import main\\nmain()\\n",
    "pip": "#!/bin/sh\\necho \\"$*\\" >> {folder}/asked\\n",
}}.items():
    script = environment / "bin" / name
    script.write_text(text)
    script.chmod(0o755)
""",
    )
    _program(
        tools / "python3",
        f"""#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    {real} -m venv --without-pip "$3" && {finish} "$3"
else
    exec {real} "$@"
fi
""",
    )
    _program(tools / "make", f'#!/bin/sh\n[ "$*" = setup ] && exec {tools}/python3 -m venv .venv\n')
    return tools


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
