"""Apache ActiveMQ Artemis as a peer: a broker embedded in a small Java program, which speaks AMQP 1.0 natively.

The program stands in `benchmarks/artemis`. Maven fetches the pinned version once, javac compiles the program once, and
both are kept below `.build`. Each run has a data folder and a port of its own, on 127.0.0.1 only.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

from benchmarks.load.link import Target
from benchmarks.peers import LOG_TAIL, Peer, PeerError, end_of_log, end_process

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = Path(__file__).with_name("artemis")
BUILD_ROOT: Final = ROOT / ".build"
BUILD_TIMEOUT: Final = 600.0
TOOLS: Final = ("java", "javac", "mvn")
NAMES: Final = {"artemis": "NIO", "artemis-aio": "ASYNCIO"}
"""By the name of the peer, its kind of journal: written through Java's files, or by libaio, if that is installed."""
QUEUE: Final = "bench"

#: What suits Artemis. Every setting is printed with the figures. The journals are always synced with fdatasync, for
#: transactional and other records alike; security, paging, expiry scans and limits of memory are off.
SETTINGS: Final[dict[str, str]] = {
    "buffer-timeout-ms": "0.25",
    "buffer-bytes": "501760",
    "journal-file-bytes": "10485760",
    "journal-files": "10",
    "amqp-credits": "3000",
    "amqp-low-credits": "2000",
    "epoll": "true",
    "remoting-threads": "6",
}
#: A fixed heap with the collector of the highest throughput; two processors have no core left for a concurrent one.
JVM_OPTIONS: Final = ("-Xms2g", "-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
UNPROMISED: Final = (
    "Artemis answers no settlement of a receiver: receivers settle for themselves, and the clock stops before the"
    " removals are on disk, where duobus has synced and confirmed each one",
    "Artemis has message groups but no sessions that a receiver names, so S4x4 is left out",
)
"""What stands beside each figure, as it was measured."""


class NotBuilt(PeerError):
    """There is no JDK, no Maven, or the program could not be built; the text says what to do."""


def missing_tool() -> str | None:
    """Return a sentence about what is missing to build and run Artemis; None when nothing is."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return (
                f"{tool} is not on PATH: --peer artemis needs a JDK 17 or newer and Maven"
                " (on Debian as root: apt-get install openjdk-17-jdk-headless maven)"
            )
    return None


def build(sources: Path = SOURCES, build_root: Path = BUILD_ROOT) -> Path:
    """Return the folder of the compiled program, with the jars in `lib`; made once per version of the sources.

    Raises:
        NotBuilt: see there.
    """
    problem = missing_tool()
    if problem is not None:
        raise NotBuilt(problem)
    files = sorted(path for path in sources.iterdir() if path.suffix in {".java", ".xml"})
    # this module says how the folder is laid out
    version = hashlib.sha256(b"".join(path.read_bytes() for path in [*files, Path(__file__)])).hexdigest()[:12]
    folder = build_root / f"artemis-{version}"
    if folder.is_dir():
        return folder
    build_root.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="artemis-partial-", dir=build_root))
    try:
        fetch = ["mvn", "-q", "-B", "-f", str(sources / "pom.xml"), "dependency:copy-dependencies"]
        _run([*fetch, f"-DoutputDirectory={partial / 'lib'}"], "Artemis cannot be had from the Maven repository")
        programs = [str(path) for path in files if path.suffix == ".java"]
        _run(["javac", "-Xlint:all", "-cp", f"{partial / 'lib'}/*", "-d", str(partial), *programs], "javac failed")
        _unpack_native(partial / "lib", partial / "native")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _unpack_native(library: Path, folder: Path) -> None:
    """Lay the native half of the ASYNCIO journal where the virtual machine looks for it."""
    folder.mkdir()
    for jar in library.glob("activemq-artemis-native-*.jar"):
        with zipfile.ZipFile(jar) as members:
            for name in members.namelist():
                if name.endswith("-64.so"):
                    (folder / Path(name).name).write_bytes(members.read(name))


def _run(command: Sequence[str], problem: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(f"{problem}: no end within {BUILD_TIMEOUT:g} s") from error
    if done.returncode != 0:
        raise NotBuilt(f"{problem}; run this again when it can be reached:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")


def command_of(
    program: Path, data: Path, ready: Path, settings: Mapping[str, str], options: Sequence[str] = JVM_OPTIONS
) -> list[str]:
    """Return the words that start the program of `build`."""
    words = [f"{name}={value}" for name, value in settings.items()]
    options = [*options, f"-Djava.library.path={program / 'native'}", "-cp", f"{program}:{program / 'lib'}/*"]
    return ["java", *options, "ArtemisPeer", str(data), str(ready), *words]


class ArtemisPeer(Peer):
    """A broker of its own with a journal that is synced before anything is accepted.

    Args:
        data_root: the folder in which data folders are made; it should lie on the disk that counts.
        program: the folder that `build` returned.
        name: one of NAMES.
        timeout: seconds that start and stop may take.
    """

    warm_up_passes = 3

    def __init__(self, *, data_root: Path, program: Path, name: str = "artemis", timeout: float = 60.0) -> None:
        super().__init__(name)
        self._settings = {"journal": NAMES[name], **SETTINGS}
        self._program = program
        self._data_root = data_root
        self._timeout = timeout
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, Any] = {}

    def start(self) -> float:
        """Start the broker; see `Peer.start`. The queue is made by the first link to it."""
        self.stop()
        self._folder = folder = Path(tempfile.mkdtemp(prefix="duobus-bench-artemis-", dir=self._data_root))
        ready = folder / "ready.json"
        with (folder / "log").open("wb") as log:
            started = perf_counter()
            self._process = subprocess.Popen(
                command_of(self._program, folder / "data", ready, self._settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        while not ready.exists():
            if self._process.poll() is not None:
                raise PeerError(f"{self.name} ended while it started:\n{self.log_tail()}")
            if perf_counter() - started > self._timeout:
                raise PeerError(f"{self.name} was not ready within {self._timeout:g} s:\n{self.log_tail()}")
            sleep(0.005)
        took = perf_counter() - started
        self._ready = json.loads(ready.read_text())
        self.version = str(self._ready["version"])
        if self._ready["journal"] != self._settings["journal"]:
            raise PeerError(
                f"{self.name} has the journal {self._ready['journal']}, because libaio is not installed"
                " (on Debian as root: apt-get install libaio1)"
            )
        return took

    @property
    def settings(self) -> dict[str, str]:
        """Every setting of broker and virtual machine."""
        return {**self._settings, "fdatasync": "true", "security": "off", "jvm": " ".join(JVM_OPTIONS)}

    @property
    def unpromised(self) -> Sequence[str]:
        """See `Peer.unpromised`."""
        return UNPROMISED

    def stop(self) -> None:
        """Ask the broker to end, make it end if it does not, and delete its folder."""
        process, self._process = self._process, None
        if process is not None:
            end_process(process, self._timeout)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def target(self) -> Target:
        """The queue. Artemis stores only what the header calls durable, and answers no settlement of a receiver."""
        port = int(self._ready["amqp_port"])
        return Target("127.0.0.1", port, QUEUE, settles_second=False, wants_durable=True, confirms_settlements=False)

    @property
    def pid(self) -> int:
        """The process id of the virtual machine.

        Raises:
            PeerError: it does not run.
        """
        if self._process is None:
            raise PeerError(f"{self.name} does not run")
        return self._process.pid

    def supports(self, workload: str) -> bool:
        """Return False for the batch format, the sessions and the SDK of Service Bus, which Artemis does not know."""
        return not workload.startswith(("E", "S"))

    def log_tail(self) -> str:
        """Return the end of what the program printed."""
        return end_of_log(self._folder)
