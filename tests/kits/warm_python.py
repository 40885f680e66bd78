"""Python processes that begin in a fork of a process that has imported their modules.

For each step of planning and each task Spark has a fork of a process that has imported next to nothing. Each of them
imports PySpark, Arrow, the SDK and duobus: half a second of processor time, sixty times. The samples of the SDK are
fifty programs that import the SDK: a second each. Here one process has imported all that, and a small program is given
to Spark, or to the test, as its Python. That program passes its arguments, environment and standard streams to the
process that waits, and lives as long as the fork.

The process of a stream's source is such a fork, too, and needs one thing more: Spark closes its connection and ends it
at once. A fork hears of the second a moment later, so it waits for that moment before it stops its reader.

Whatever else is asked of Spark's program, the real interpreter answers. Where Spark's processes are killed one by one,
tests use the interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

#: What the processes of Spark import, and what duobus imports in them.
_MODULES_OF_SPARK: Final = (
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "azure.servicebus.management",
    "duobus.spark.data_source",
    "duobus.spark.jobs.work.syphon",
    "duobus.spark.sink.writer",
    "duobus.spark.source.browse_stream",
    "duobus.spark.source.claim_stream",
    "duobus.spark.source.partition_reader",
    "duobus.spark.source.range_reader",
    "kits.prompt_links",
    "pandas",
)
#: What Spark's program is asked for by the process of a stream's source.
_SOURCE: Final = ["-m", "pyspark.sql.streaming.python_streaming_source_runner"]
#: A request, in bytes: arguments, environment and folder.
REQUEST_MAX: Final = 1 << 20
#: Seconds within which a fork is told that its program was ended.
TOLD_S: Final = 0.5


class Kind(NamedTuple):
    """What the processes are."""

    #: Imported before the first fork.
    modules: Sequence[str]
    #: Arguments, one of which a command has to begin with to be run in a fork; the interpreter answers all others.
    begins_with: Sequence[Sequence[str]] = ((),)
    #: For the process that waits, beside its own.
    environment: Mapping[str, str] = {}
    #: What the command of the process that waits begins with.
    prefix: Sequence[str] = ()


#: Its environment keeps NumPy and Arrow from starting threads, and gives the hashes that Spark gives its processes.
OF_SPARK: Final = Kind(
    _MODULES_OF_SPARK,
    (("-m", "pyspark.daemon"), _SOURCE),
    {
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    },
)
_PROGRAM: Final = """\
#!{python} -IS
import os, sys
if not any(sys.argv[1:1 + len(first)] == first for first in {begins_with!r}):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import json, socket
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel.connect({address!r})
request = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
socket.send_fds(channel, [json.dumps(request).encode()], [0, 1, 2])
answer = channel.recv(16)
os._exit(int(answer) if answer else 1)
"""


class WarmPython:
    """The process that waits, and the program that is Spark's Python; both end with the context.

    Args:
        folder: An empty folder for the program and the address.
        kind: What the forks are.

    Attributes:
        program: What is to be run in place of the interpreter.
        pid: Number of the process that waits.
    """

    def __init__(self, folder: Path, kind: Kind = OF_SPARK) -> None:
        begins_with = [list(first) for first in kind.begins_with]
        self.program = folder / "python"
        address = str(folder / "address")
        self.program.write_text(_PROGRAM.format(python=sys.executable, address=address, begins_with=begins_with))
        self.program.chmod(0o755)
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(64)
            numbers = (listener.fileno(), theirs.fileno())
            self._process = subprocess.Popen(
                [*kind.prefix, sys.executable, __file__, *map(str, numbers), *kind.modules],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                start_new_session=True,
                env={**os.environ, **kind.environment},
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.wait()


@contextmanager
def python_of_spark(folder: Path) -> Iterator[Path]:
    """What ``PYSPARK_PYTHON`` has to be: the program of a ``WarmPython``; the interpreter on other systems than Linux.

    Yields:
        The path.
    """
    if sys.platform != "linux":
        yield Path(sys.executable)
        return
    with WarmPython(folder) as python:
        yield python.program


# -- the process that waits -------------------------------------------------------------------------------------------


class Forks:
    """Forks that run, each with the channel of the program that asked for it."""

    def __init__(self, listener: socket.socket, tester: socket.socket) -> None:
        self._listener = listener
        self._tester = tester
        self._poll = select.poll()
        for one in (listener, tester):
            self._poll.register(one, select.POLLIN)
        #: By number of the process's descriptor: the process, and the channel of its program.
        self._running: dict[int, tuple[int, socket.socket]] = {}
        #: By number of the channel: the descriptor of the process.
        self._asked: dict[int, int] = {}

    def serve(self) -> None:
        """Fork for each request, until the process of the tests goes."""
        while True:
            for number, _ in self._poll.poll():
                if number == self._listener.fileno():
                    self._begin(self._listener.accept()[0])
                elif number in self._running:
                    self._ended(number)
                elif number in self._asked:
                    # Its program was ended, so the fork is told as the program was.
                    self._poll.unregister(number)
                    signal.pidfd_send_signal(self._asked[number], signal.SIGTERM)
                elif number == self._tester.fileno():
                    return

    def _begin(self, channel: socket.socket) -> None:
        data, streams, _flags, _address = socket.recv_fds(channel, REQUEST_MAX, 3)
        if not data:
            # Its program was ended before it had asked.
            channel.close()
            return
        pid = os.fork()
        if pid == 0:
            for other in (self._listener, self._tester, channel, *(one for _, one in self._running.values())):
                other.close()
            for number in self._running:
                os.close(number)
            become(data, streams)
        for stream in streams:
            os.close(stream)
        descriptor = os.pidfd_open(pid)
        self._running[descriptor] = pid, channel
        self._asked[channel.fileno()] = descriptor
        for number in (descriptor, channel.fileno()):
            self._poll.register(number, select.POLLIN)

    def _ended(self, descriptor: int) -> None:
        pid, channel = self._running.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        del self._asked[channel.fileno()]
        with channel:
            try:
                self._poll.unregister(channel)
                channel.send(str(os.waitstatus_to_exitcode(status) & 255).encode())
            except (KeyError, OSError):
                # Its program went before.
                return


def become(data: bytes, streams: list[int]) -> NoReturn:
    """Run the module or the program of a request in this fork, as the interpreter would."""
    status = 1
    try:
        request: dict[str, Any] = json.loads(data)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        if os.environ.get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(write_through=True)
        run(request["arguments"], request["folder"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 -- whatever it is, the fork must not go on as its parent would
        sys.excepthook(*sys.exc_info())
    finally:
        for output in (sys.stdout, sys.stderr):
            output.flush()
        os._exit(status)


def run(arguments: list[str], folder: str) -> None:
    """Run ``-m`` and a module, or a program by its path."""
    is_module = arguments[0] == "-m"
    if arguments[:2] == _SOURCE:
        hear_of_the_end_first()
    sys.argv = arguments[is_module:]
    first = folder if is_module else str(Path(sys.argv[0]).parent)
    paths = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    if is_module:
        # It is run once more, under the name of a program.
        sys.modules.pop(sys.argv[0], None)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def hear_of_the_end_first() -> None:
    """Have the process of a source wait, when its connection is closed, until it is told that Spark has ended it."""
    from pyspark import serializers

    read = serializers.read_int

    def read_patiently(stream: Any) -> int:
        try:
            return read(stream)
        except EOFError:
            time.sleep(TOLD_S)
            raise

    serializers.read_int = read_patiently


def wait_for_requests() -> None:
    """The life of the process that waits; its arguments are the numbers of its sockets, then the modules."""
    from importlib import import_module

    listener, tester = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    # The folder of the kits would hide modules of the library that have their names.
    del sys.path[0]
    for name in sys.argv[3:]:
        import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a module has started a thread, which no fork would have")
    gc.collect()
    gc.freeze()
    Forks(listener, tester).serve()


if __name__ == "__main__":
    wait_for_requests()
