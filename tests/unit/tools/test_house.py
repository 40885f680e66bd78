"""The figures of the layout count what they are there to count, each with its fault."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[3]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["house"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


house = _load()

LAYERS = """[importlinter:contract:server-layers]
type = layers
layers =
    duobus.testing
    duobus.broker
    duobus.storage | duobus.amqp
    duobus.errors | duobus.file_sync
"""
#: Everything that is asked for, and nothing that is counted.
SOUND = {
    ".importlinter": LAYERS,
    "Makefile": "test-fast:\n",
    "README.md": "# A broker\n",
    "docs/reference/invariants.md": "| I1 | Messages are kept. |\n",
    "docs/reference/requirements.md": "| PE4 | Stores are lost. |\n",
    "docs/decisions/0001-few-libraries.md": "# 0001 Libraries\n",
    "tests/unit/walks.json": json.dumps({"send": {"broker/queue.py": ["Queue.send"]}}),
    "src/duobus/__init__.py": "",
    "src/duobus/file_sync.py": "",
    "src/duobus/broker/__init__.py": "",
    "src/duobus/broker/queue.py": "from duobus.storage.store import Store\n",
    "src/duobus/storage/__init__.py": "",
    "src/duobus/storage/store.py": "import ast\nfrom duobus import file_sync\n\nclass Store: ...\n",
    "src/duobus/ha/__init__.py": "from duobus.file_sync import sync_file\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, SOUND)
    return tmp_path


def missed(root: Path) -> dict[str, list[str]]:
    """Every figure that is above its limit, open or not, with its places."""
    found = house.figures(house.Checkout(root))
    return {figure.name: list(figure.places) for figure in found if figure.value > figure.limit}


def test_a_sound_checkout_is_within_every_limit(root: Path) -> None:
    assert missed(root) == {}


NEEDS_BROKER = "from duobus.broker.queue import Queue\n"


@pytest.mark.parametrize(
    ("name", "files", "place"),
    [
        ("folders of more than 15 files", {f"src/duobus/amqp/m{n}.py": "x = 1\n" * 41 for n in range(16)}, "amqp: 16"),
        ("files of more than 800 lines", {"src/duobus/storage/store.py": "\n" * 801}, "storage/store.py"),
        ("modules of at most 40 lines", {f"src/duobus/amqp/m{n}.py": "" for n in range(9)}, "amqp/m8.py"),
        ("lines of README.md", {"README.md": "\n" * 91}, ""),
        ("folders of tests", {f"tests/t{n}/test_it.py": "" for n in range(5)}, "t4"),
        ("make test-fast missing", {"Makefile": "test:\n"}, ""),
        (
            "files of a plain send",
            {"tests/unit/walks.json": json.dumps({"send": {f"{n}.py": [] for n in range(26)}})},
            "25.py",
        ),
        ("functions of a plain send", {"tests/unit/walks.json": json.dumps({"send": {"a.py": ["f"] * 91}})}, ""),
        ("imports against the layers", {"src/duobus/storage/up.py": NEEDS_BROKER}, "storage.up -> duobus.broker.queue"),
        (
            "imports against the layers",
            {"src/duobus/storage/up.py": f"if TYPE_CHECKING:\n    {NEEDS_BROKER}"},
            "storage.up -> duobus.broker.queue",
        ),
        (
            "imports against the layers",
            {"src/duobus/storage/up.py": "try:\n    x\nexcept E:\n    from ..broker import queue\n"},
            "storage.up -> duobus.broker.queue",
        ),
        (
            "imports against the layers",
            {"src/duobus/amqp/aside.py": "from duobus.storage import store\n"},
            "amqp.aside -> duobus.storage.store",
        ),
        ("imports against the layers", {"src/duobus/ha/pair.py": NEEDS_BROKER}, "ha.pair -> duobus.broker.queue"),
        (
            "imports against the layers",
            {"src/duobus/broker/b.py": "from duobus.ha import x\n"},
            "broker.b -> duobus.ha",
        ),
        (
            "imports against the layers",
            {"src/duobus/broker/b.py": "from simulation import x\n", "simulation/__init__.py": ""},
            "broker.b -> simulation",
        ),
        (
            "rings of modules when they are loaded",
            {
                "src/duobus/amqp/a.py": "from duobus.amqp.b import x",
                "src/duobus/amqp/b.py": "from duobus.amqp.a import y",
            },
            "duobus.amqp.a duobus.amqp.b",
        ),
        (
            "rings of more than 2 modules, types included",
            {
                f"src/duobus/amqp/{ring}{n}.py": f"def f():\n    from duobus.amqp.{ring}{(n + 1) % 3} import x\n"
                for ring in "abcdefg"
                for n in range(3)
            },
            "duobus.amqp.a0 duobus.amqp.a1 duobus.amqp.a2",
        ),
        (
            "such rings across rooms",
            {
                "src/duobus/amqp/a.py": "from duobus.amqp.b import x",
                "src/duobus/amqp/b.py": "def f():\n    from duobus.storage.c import x\n",
                "src/duobus/storage/c.py": "def f():\n    from duobus.amqp.a import x\n",
            },
            "duobus.amqp.a duobus.amqp.b duobus.storage.c",
        ),
        (
            "uses of a fragment's message broker through its handle",
            {"src/duobus/broker/queue.py": "handle.broker.submit(1)\n"},
            "broker/queue.py: handle.broker.submit",
        ),
        (
            "public classes that stand twice in a room",
            {"src/duobus/storage/rows.py": "class Store: ...\n"},
            "storage: Store in src/duobus/storage/rows.py, src/duobus/storage/store.py",
        ),
        (
            "definitions, modules and folders with a coined word",
            {"src/duobus/broker/queue.py": "class MessageLane: ...\n"},
            "broker/queue.py: MessageLane",
        ),
        (
            "definitions, modules and folders with a coined word",
            {"src/duobus/broker/dead_desk.py": ""},
            "broker/dead_desk.py: the module",
        ),
        (
            "definitions, modules and folders with a coined word",
            {"src/duobus/broker/dead_desk/a.py": ""},
            "broker/dead_desk/a.py: the folder dead_desk",
        ),
        ("uses of coined words in names", {"src/duobus/broker/queue.py": "self.lent = 1\n"}, "lent: 1"),
        ("modules named by a gerund", {"src/duobus/broker/moving.py": ""}, "broker/moving.py"),
        (
            "citations of what the repository does not hold",
            {"src/duobus/broker/queue.py": "# One write (I1), of one row (I2).\n"},
            "queue.py: I2 is not in docs/reference/invariants.md",
        ),
        (
            "citations of what the repository does not hold",
            {"src/duobus/broker/queue.py": "# PE4, but PE5.\n"},
            "queue.py: PE5 is not in docs/reference/requirements.md",
        ),
        (
            "citations of what the repository does not hold",
            {"src/duobus/broker/queue.py": "# decision 0001, not decision 0002\n"},
            "queue.py: decision 0002",
        ),
        (
            "citations of what the repository does not hold",
            {"src/duobus/broker/queue.py": "# HTTP contract A.6\n"},
            "queue.py: contract A.6",
        ),
        (
            "type: ignore in broker and fragment",
            {"src/duobus/broker/queue.py": "x  # type: ignore\n" * 3},
            "src/duobus/broker/queue.py: 3",
        ),
        (
            "assert isinstance in the product",
            {"src/duobus/storage/store.py": "assert isinstance(x, int)\n" * 21},
            "src/duobus/storage/store.py: 21",
        ),
        (
            "isinstance in fragment/fragment.py",
            {"src/duobus/fragment/fragment.py": "isinstance(x, int)\n"},
            "src/duobus/fragment/fragment.py: 1",
        ),
        (
            "isinstance in gateway/amqp",
            {"src/duobus/gateway/amqp/peer.py": "isinstance(x, int)\n" * 61},
            "src/duobus/gateway/amqp/peer.py: 61",
        ),
    ],
)
def test_one_fault_is_found_where_it_is(root: Path, name: str, files: dict[str, str], place: str) -> None:
    write(root, files)
    found = missed(root)
    assert name in found
    assert not place or any(place in one for one in found[name]), found[name]


def test_what_has_a_reason_is_no_fault(root: Path) -> None:
    write(
        root,
        {
            # A generated module, names of other programs, formats on disk, twins, rooms that may use the client's side.
            "src/duobus/storage/made.py": "# Generated from x\nclass Store: ...\nclass Lane: ...\n",
            "src/duobus/broker/queue.py": "def visit_Name(): ...\ndef is_in_doubt(): ...\n",
            "src/duobus/storage/sqlite_schema.py": "class Lane: ...\nspread = 1\n",
            "src/duobus/ha/aio/events.py": "class Event: ...\n",
            "src/duobus/ha/sync/events.py": "class Event: ...\n",
            "src/duobus/testing/plugin.py": "from duobus.ha.aio import events\nfrom duobus.broker import queue\n",
            "simulation/run.py": "from duobus.broker import queue\n",
        },
    )
    assert missed(root) == {}


def test_a_missed_figure_fails(root: Path) -> None:
    assert CliRunner().invoke(house.main, [str(root)]).exit_code == 0
    write(root, {"README.md": "\n" * 91})
    failed = CliRunner().invoke(house.main, [str(root), "--where"])
    assert failed.exit_code == 1
    assert "MISS lines of README.md" in failed.output
