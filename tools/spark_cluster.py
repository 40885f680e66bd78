"""Tries the pipeline on a cluster: Spark's own standalone master and two workers on this machine, and Spark Connect.

The interpreter of the workers has pyspark, pyarrow and the SDK, and not this project: that travels as ``--py-files``,
as it would to a cluster of somebody else's. Then the workers have Spark alone, and an environment with all the rest
travels as ``spark.archives``. Everything listens on loopback, on ports that the system picks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from duobus.testing.server import ServerProcess, queues_config

ROOT = Path(__file__).resolve().parents[1]
HOME = Path(pyspark.__file__).parent
PROGRAM = ROOT / "tools" / "spark_cluster_program.py"
LIMIT_S = 180.0
LOOPBACK = "127.0.0.1"
MESSAGES = 2_000
#: Of the environment, what no job needs.
LEFT_OUT = [word for name in ("*/tests/*", "*/pip/*", "*/__pycache__/*") for word in ("--exclude", name)]
#: For a JVM that lives for a minute: compiling for a long run would be half of its work.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class Process:
    """A long-running class of Spark whose log tells its address.

    Args:
        name: For its log.
        command: What to start.
        told: What its log says when it is up; the first group is kept as ``address``.
    """

    def __init__(self, folder: Path, name: str, command: list[str], told: str, environment: dict[str, str]) -> None:
        self._log = folder / f"{name}.log"
        self._command = command
        self._told = re.compile(told)
        self._environment = environment
        self.address = ""

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # A session of its own, so that the JVM goes with the script that starts it.
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        end = time.monotonic() + LIMIT_S
        while (found := self._told.search(self._log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise SystemExit(f"{self._command[:3]} did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        self.address = found[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def bare_python(folder: Path) -> Path:
    """An interpreter that has what this one has, without this project."""
    venv.create(folder, with_pip=False)
    site = next((folder / "lib").glob("python*/site-packages"))
    # Of a path file that is named in a path file nothing is read: the editable install of this project is left behind.
    (site / "libraries.pth").write_text(str(HOME.parent) + "\n")
    python = folder / "bin" / "python"
    found = subprocess.run([python, "-I", "-c", "import pyspark, pyarrow, azure.servicebus"], check=False)
    without = subprocess.run([python, "-I", "-c", "import duobus"], check=False, stderr=subprocess.DEVNULL)
    if found.returncode or not without.returncode:
        raise SystemExit("The interpreter for the workers is not as it should be.")
    return python


def environment_to_pack(folder: Path) -> Path:
    """An environment with the project and what it needs, and without Spark, which each worker has; made once."""
    python = folder / "env" / "bin" / "python"
    made_of = (ROOT / "constraints.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    stamp = folder / "made-of"
    if not stamp.exists() or stamp.read_text() != made_of:
        print("making an environment to pack ...", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder / "env", with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        needs = [".[arrow,ha]", "pandas<3", "venv-pack"]
        subprocess.run([*pip, "-c", "constraints.txt", *needs], cwd=ROOT, check=True)
        stamp.write_text(made_of)
    else:
        # The code of today; its libraries are there.
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, "--no-deps", "--force-reinstall", "."], cwd=ROOT, check=True)
    return folder / "env"


def packed_environment(env: Path, folder: Path) -> Path:
    """An environment as an archive, which finds its libraries wherever it is unpacked."""
    archive = folder / "env.tar.gz"
    subprocess.run(
        [env / "bin" / "venv-pack", "-q", "-p", env, "-o", archive, "--compress-level", "1", *LEFT_OUT], check=True
    )
    return archive


def packed(folder: Path) -> Path:
    """The project as one file for ``--py-files``: pure Python, some 1 MB."""
    path = folder / "duobus.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("duobus", "pyspark_duobus"):
            for file in sorted((ROOT / "src" / package).rglob("*")):
                if file.is_file() and file.suffix in (".py", ".toml"):
                    archive.write(file, file.relative_to(ROOT / "src"))
    return path


def send(server: ServerProcess, queue: str) -> None:
    """Put messages into a queue."""
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for first in range(0, MESSAGES, 500):
            sender.send_messages([ServiceBusMessage(f"message {number}") for number in range(first, first + 500)])


def run(command: list[str], environment: dict[str, str], folder: Path | None = None) -> dict[str, Any]:
    """Run a program, in a folder, and return the last line that it printed."""
    started = time.monotonic()
    print(f"running {Path(command[0]).name} {Path(PROGRAM).name} ...", file=sys.stderr)
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        raise SystemExit(f"{command[-5:]} has not ended within {error.timeout:.0f} s:\n{said[-6000:]}") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        told = "\n".join(line[:500] for line in done.stderr.splitlines() if not line.lstrip().startswith("at "))
        raise SystemExit(f"{command[-5:]} failed:\n{done.stdout[-2000:]}\n{told[-6000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    """Start everything, try everything, print what was seen."""
    # A tool that is told to end takes what it started with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-cluster", action="store_true", help="leave the cluster out")
    parser.add_argument("--no-py-files", action="store_true", help="leave the project as a file for the workers out")
    parser.add_argument("--no-archives", action="store_true", help="leave the packed environment out")
    parser.add_argument("--no-connect", action="store_true", help="leave Spark Connect out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duobus-cluster-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        server = stack.enter_context(ServerProcess(folder / "server", config=queues_config({"orders": {}})))
        send(server, "orders")
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_HOME": str(HOME),
            "SPARK_WORKER_DIR": str(folder / "work"),
            "PYSPARK_PYTHON": str(bare_python(folder / "bare")),
            **dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"), SHORT_LIVED),
            # What the workers' processes inherit: each looks the secret up for itself.
            "SERVICEBUS_CONNECTION_STRING": server.connection_string,
        }
        environment["PYSPARK_DRIVER_PYTHON"] = environment["PYSPARK_PYTHON"]
        told = {}
        if not options.no_cluster:
            submit = _cluster(stack, folder, environment)
            if not options.no_py_files:
                told["cluster"] = run([*submit, "--py-files", str(packed(folder)), str(PROGRAM), "orders"], environment)
                print(json.dumps(told), file=sys.stderr)
            if not options.no_archives:
                told["archives"] = _with_archive(folder, submit, environment)
                print(json.dumps(told), file=sys.stderr)
        if not options.no_connect:
            told["connect"] = _connect(stack, folder, environment)
        print(json.dumps(told, indent=2))
    good = all(found["messages"] == found["distinct"] == MESSAGES for found in told.values())
    both = all(len(found["executors"]) == 2 for name, found in told.items() if name != "connect")
    packed_ones = "archives" not in told or told["archives"]["pythons"] == ["env"]
    return 0 if good and both and packed_ones else 1


def _with_archive(folder: Path, submit: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Submit with an environment that each executor unpacks into its own folder, and that finds the format itself."""
    env = environment_to_pack(ROOT / ".build" / "spark-cluster")
    archive = packed_environment(env, folder)
    # The driver plans reads with the Python of the executors, by its name from the folder in which it is started.
    (folder / "env").symlink_to(env)
    variables = environment | {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": f"{env}/bin/python"}
    command = [*submit, "--conf", f"spark.archives={archive}#env", str(PROGRAM), "orders", "--installed"]
    return run(command, variables, folder) | {"archive_mb": round(archive.stat().st_size / 1e6)}


def _cluster(stack: ExitStack, folder: Path, environment: dict[str, str]) -> list[str]:
    """Start a master and two workers; returns the command that submits to them."""
    spark_class = [str(HOME / "bin" / "spark-class")]
    package = "org.apache.spark.deploy"
    ports = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
    address = r"Starting Spark master at (spark://[\w.:]+)"
    master = stack.enter_context(
        Process(folder, "master", [*spark_class, f"{package}.master.Master", *ports], address, environment)
    )
    for number in (1, 2):
        command = [*spark_class, f"{package}.worker.Worker", *ports, "--cores", "1", "--memory", "1g", master.address]
        told = r"Successfully registered with master (spark://\S+)"
        stack.enter_context(Process(folder, f"worker-{number}", command, told, environment))
    submit = [str(HOME / "bin" / "spark-submit"), "--master", master.address]
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    return [*submit, *words]


def _connect(stack: ExitStack, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    # The code of the data source runs in the server's Python: there the project is installed, as it has to be.
    server_environment = environment | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
    }
    conf = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    start = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", *words]
    main_class = "org.apache.spark.sql.connect.service.SparkConnectServer"
    # No file of ours has to be submitted; the class is in Spark.
    command = [*start, "--class", main_class, "--name", "connect", "spark-internal"]
    told = r"Spark Connect server started at: [^\s:]*:(\d+)"
    server = stack.enter_context(Process(folder, "connect", command, told, server_environment))
    remote = environment | {"SPARK_REMOTE": f"sc://{LOOPBACK}:{server.address}", "PYTHONPATH": str(ROOT / "src")}
    remote.pop("SPARK_HOME")
    return run([sys.executable, str(PROGRAM), "orders", "--installed"], remote)


if __name__ == "__main__":
    sys.exit(main())
