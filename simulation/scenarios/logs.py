"""Write-ahead logs that are lost, cut, older or another's; with real SQLite files, from one seed.

Two stores and their catalog in a temporary folder take commits and passes of the checkpoints, one after the other, and
are killed: between two of these or inside of one, now and then with the power cut, by which a mark that was not synced
goes back. While they run or are down, somebody removes or replaces the log of one of them, or cuts it. Mostly nobody
does.

After each start, everything that was acknowledged is there and nothing that was completed (I1, I17), or the file is
refused by name. Then the right log is put back and everything is there, or the loss is accepted and the store opens.
Files that were left alone are never refused (I31).

A kill is a copy of the files as they are. The times that the file system notes are set from virtual time, and are as
coarse as they may be. What nobody can notice is left out: a log that is written over while it is open.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

from duobus.errors import ConfigurationError, StoreFailed
from duobus.storage.catalog import sqlite_connection as catalog_log
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog.sqlite_connection import CatalogConnection
from duobus.storage.catalog_rows import SlotRow
from duobus.storage.interface import CommitBatch, Put, SourceRow
from duobus.storage.offline import maintenance as offline
from duobus.storage.sqlite import log_space as log_room
from duobus.storage.sqlite import log_watch
from duobus.storage.sqlite import store as sqlite
from duobus.storage.sqlite.log_watch import LogWatch, Mark, MarkFile
from duobus.storage.sqlite.store import SqliteStore

LIVES: Final = (2, 4)
STEPS: Final = (1, 12)
#: What may become of a log.
REMOVED, GARBAGE, ANOTHERS, COPIED, OLDER, CUT = "removed", "garbage", "another's", "copied", "older", "cut"
#: And of a log together with the file it belongs to, while nobody uses them.
BOTH_OLDER: Final = "older with its file"
_RUNNING: Final = (REMOVED, GARBAGE, ANOTHERS, COPIED, OLDER, CUT)
_DOWN: Final = (*_RUNNING, BOTH_OLDER)
#: By these a log may go back to what the mark says; by others everything is there, or nothing is.
_TURNS_BACK: Final = (OLDER, CUT, BOTH_OLDER)
_CUT_OFF: Final = tuple(how for how in _DOWN if how not in _TURNS_BACK)
_CATALOG: Final = "catalog.db"
_START_NS: Final = 10**18
#: Of a file system that notes times as coarsely as FAT.
_GRAIN_NS: Final = 2_000_000_000
_PAUSES_S: Final = (0.0, 0.05, 0.5, 4.0, 9.0)
#: Points that a kill may wait for: a commit passes one or two, an open some ten.
_POINTS: Final = 12


class _Killed(BaseException):
    """The process is gone; nothing of it may catch this."""


class _Over(Exception):
    """There is no point in going on."""


class _Tampering:
    """What somebody did to a log, and how it can be undone.

    Attributes:
        right: What the log has to hold that it is whole; None: there was none.
        database: The same of its database, where that was changed.
    """

    def __init__(self, how: str, log: Path, *, is_running: bool) -> None:
        self.how = how
        #: Whether the store has said so, by which nothing may be lost any more.
        self.is_noticed = False
        self.right: bytes | None = None
        self.database: bytes | None = None
        #: The log that is open still, whatever has become of its name.
        self._fd: int | None = None
        with suppress(FileNotFoundError):
            self.right = log.read_bytes()
            if is_running and how != CUT:
                self._fd = os.open(log, os.O_RDONLY)

    def see(self) -> None:
        """Of what is about to be killed: what its log holds."""
        if self._fd is not None:
            self.right = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
            self.end()

    def end(self) -> None:
        """Needed no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class _Part:
    """A store, and what it has to hold."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"stores/store-{number}.db"
        self.store: SqliteStore | None = None
        self.source = SourceRow(0, 0, 0)
        self.commit_no = 0
        self.fragment = (0, 0)
        self.has_existed = False
        #: After each commit: count to payload. The last of them is what was acknowledged.
        self.states: list[dict[int, bytes]] = [{}]
        #: What would be there if the commit that nobody answered was through.
        self.doubtful: dict[int, bytes] | None = None
        #: Where among ``states`` the mark is.
        self.noted = 0
        self.highest = 0
        #: Whether its loss was accepted, and nobody has looked since what is left.
        self.is_loss_accepted = False
        self.faults: list[str] = []
        self.is_made_anew = False
        self.copies: list[tuple[bytes, bytes]] = []

    def batch(self) -> CommitBatch:
        batch = CommitBatch(self.commit_no + 1, 1_000 + self.commit_no)
        batch.epochs = [self.fragment]
        return batch

    def commit(self, batch: CommitBatch, after: dict[int, bytes]) -> None:
        """Have a batch committed, after which ``after`` is there."""
        assert self.store is not None
        self.doubtful = after
        self.store.commit(batch)
        self.commit_no += 1
        self.states.append(after)
        self.doubtful = None

    def send(self, payloads: list[bytes]) -> None:
        batch, first = self.batch(), self.source.next_count
        batch.puts.append(Put(self.source.source_key, first, 1_700_000_000_000, payloads, None))
        self.source.next_count += len(payloads)
        batch.sources.append((self.source.source_key, self.source.next_count, 0, b""))
        self.commit(batch, {**self.states[-1], **{first + number: one for number, one in enumerate(payloads)}})
        self.highest = self.source.next_count - 1

    def complete(self, rng: random.Random) -> None:
        if not self.states[-1]:
            return
        counts = sorted(self.states[-1])
        first = rng.choice(counts)
        last = first + rng.choice((0, 0, 3))
        batch = self.batch()
        batch.removed.append((self.source.source_key, first, last))
        self.commit(batch, {count: one for count, one in self.states[-1].items() if not first <= count <= last})

    def open(self, data: Path) -> dict[int, bytes]:
        """Open the store and return what it holds.

        Raises:
            StoreFailed: It is refused.
        """
        if self.store is not None:
            self.store._abandon("opened again")
        store = self.store = SqliteStore(str(data / self.name), self.number, must_exist=self.has_existed)
        contents = store.open()
        self.has_existed = True
        store.begin_generation(())
        self.is_made_anew = not contents.fragments
        if self.is_made_anew:
            store.add_fragment(1, 0, (0,))
        (fragment,), (source,) = list(store._fragments.values()), list(store._sources.values())
        self.fragment = (fragment.fragment_key, fragment.epoch)
        self.source = SourceRow(source.source_key, source.fragment_key, 0, source.next_count)
        self.commit_no = contents.last_commit_no
        self.faults = store.verify()
        return {message.count: message.payload for message in store.load(self.source.source_key, 1, 1 << 20)}

    def judge(self, found: dict[int, bytes], tampering: _Tampering | None) -> str | None:
        """What is wrong with what was found."""
        if self.is_loss_accepted:
            self.is_loss_accepted = False
            return None
        after = "nothing" if tampering is None else tampering.how
        if self.faults:
            return f"I1: store {self.number} opens damaged after: {after}: {self.faults[0]}"
        last = self.states[-1]
        allowed = [last] if self.doubtful is None else [last, self.doubtful]
        if tampering is not None and tampering.how in _TURNS_BACK and not tampering.is_noticed:
            allowed += self.states[self.noted :]
        if found in allowed:
            return None
        doubtful = last if self.doubtful is None else self.doubtful
        lost = sorted(count for count in last if count in doubtful and found.get(count) != last[count])
        if lost:
            return f"I1: message {lost[0]} of store {self.number} was acknowledged and is gone after: {after}"
        revived = sorted(found.keys() - last.keys())
        return (
            f"I17: message {revived or sorted(found)} of store {self.number} was completed and is there after: {after}"
        )


class _Run:
    """One seed."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = random.Random(f"logs:{seed}")
        self.root = root
        self.data = root / "0"
        self.wrong: list[str] = []
        self.parts = [_Part(1), _Part(2)]
        self.catalog: SqliteCatalog | None = None
        #: Entities that were answered, and one that was not.
        self.entities: set[str] = set()
        self.doubtful_entity = ""
        self.catalogs: list[tuple[bytes, bytes]] = []
        #: The part that somebody tampered with (None for the catalog).
        self.target: _Part | None = None
        self.tampering: _Tampering | None = None
        self.durable_marks: dict[str, bytes] = {}
        # The parts whose marks went back by a power cut, and were not written since.
        self._gone_back: set[int] = set()
        #: Points until the kill; None for none.
        self.points: int | None = None
        self._copy: Path | None = None
        self._lives = 0
        self._now_ns = _START_NS
        self._stamps: dict[Path, int] = {}

    # -- kills --------------------------------------------------------------------------------------------------

    def point(self) -> None:
        """Here a kill may strike."""
        if self.points is not None:
            self.points -= 1
            if self.points < 0:
                self.points = None
                self._see_files()
                raise _Killed

    def _see_files(self) -> None:
        if self.tampering is not None:
            self.tampering.see()
        self._lives += 1
        self._copy = self.root / str(self._lives)
        shutil.copytree(self.data, self._copy)

    def kill(self) -> None:
        """End the process, if that has not happened yet; what it closes now is in a folder that nobody sees again."""
        if self._copy is None:
            self._see_files()
        self.points = None
        self._stop()
        shutil.rmtree(self.data)
        assert self._copy is not None
        self.data, self._copy = self._copy, None
        self._stamps.clear()
        # A mark that went back says less of a log that goes back as well.
        is_back = self.tampering is not None and self.tampering.how in _TURNS_BACK
        if self.rng.random() < 0.3 and not is_back:
            self._gone_back = {part.number for part in self.parts}
            # Until its next change, its mark does not tell it from one of these.
            self.catalogs.clear()
            for path in sorted(self.data.rglob("*.mark")):
                if path.name in self.durable_marks:
                    path.write_bytes(self.durable_marks[path.name])
        self.stamp()

    def _stop(self) -> None:
        for part in self.parts:
            if part.store is not None:
                part.store._abandon("killed")
                part.store = None
        if self.catalog is not None:
            self.catalog.close()
            self.catalog = None

    def stamp(self) -> None:
        """Set the times of what has changed to virtual time."""
        now_ns = self._now_ns - self._now_ns % _GRAIN_NS
        for path in (self.data / "stores", *(self._log(part) for part in self.parts)):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns != self._stamps.get(path):
                    os.utime(path, ns=(now_ns, now_ns))
                    self._stamps[path] = now_ns

    # -- somebody at the files ----------------------------------------------------------------------------------

    def _database(self, part: _Part | None) -> Path:
        return self.data / (_CATALOG if part is None else part.name)

    def _log(self, part: _Part | None) -> Path:
        return self._database(part).with_name(f"{self._database(part).name}-wal")

    def keep(self) -> None:
        """Take copies, of which somebody will put one back."""
        for part in (*self.parts, None):
            log = self._log(part)
            if log.exists():
                kept = self.catalogs if part is None else part.copies
                kept.append((log.read_bytes(), self._database(part).read_bytes()))

    def tamper(self, *, is_running: bool) -> None:
        """Do something to a log."""
        rng = self.rng
        part = rng.choice((*self.parts, *self.parts, None))
        log = self._log(part)
        how = rng.choice(_RUNNING if is_running else (_CUT_OFF if self._gone_back else _DOWN))
        copies = self.catalogs if part is None else part.copies
        if not log.exists() or (how in (OLDER, BOTH_OLDER) and not copies):
            return
        self.target, self.tampering = part, _Tampering(how, log, is_running=is_running)
        if how == CUT:
            os.truncate(log, rng.randrange(log.stat().st_size + 1))
        elif how == REMOVED:
            log.unlink()
        else:
            older, database = rng.choice(copies) if copies else (b"", b"")
            other = self._log(rng.choice([one for one in self.parts if one is not part]))
            held = self.tampering.right
            bytes_of = {GARBAGE: b"something else" * 10, COPIED: held, OLDER: older, BOTH_OLDER: older}
            new = other.read_bytes() if how == ANOTHERS and other.exists() else bytes_of.get(how)
            beside = log.with_name("beside")
            beside.write_bytes(new or b"")
            beside.rename(log)
            if how == BOTH_OLDER:
                self.tampering.database = self._database(part).read_bytes()
                self._database(part).write_bytes(database)
        self.stamp()

    def put_back(self) -> None:
        """Undo it, as the refusal says."""
        assert self.tampering is not None
        log = self._log(self.target)
        log.unlink(missing_ok=True)
        if self.tampering.right is not None:
            log.write_bytes(self.tampering.right)
        if self.tampering.database is not None:
            self._database(self.target).write_bytes(self.tampering.database)

    # -- starts -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open everything, and look whether it is all there."""
        (self.data / "stores").mkdir(parents=True, exist_ok=True)
        self._open_catalog()
        for part in self.parts:
            # A loss was accepted, for which all are stopped, and opened again.
            if part.store is None:
                self.open(part)
        self.stamp()

    def open(self, part: _Part) -> None:
        """Open a store, whatever it takes."""
        tampering = self.tampering if self.target is part else None
        try:
            found = part.open(self.data)
        except StoreFailed as error:
            self._refused(part, str(error), part.name)
            if tampering is None:
                raise _Over from None
            if self.rng.random() < 0.5:
                self.put_back()
                found = self._opened_again(part)
            else:
                found = self._accepted(part)
        wrong = part.judge(found, tampering)
        if wrong is not None:
            self.wrong.append(wrong)
            raise _Over
        if found not in (part.states[-1], part.doubtful):
            # It went back: copies of what it had been are not older than what comes now.
            part.copies.clear()
        self._gone_back.discard(part.number)
        part.states, part.doubtful = [found], None
        part.noted = 0
        if tampering is not None:
            tampering.end()
            self.tampering = None

    def _refused(self, part: _Part | None, text: str, name: str) -> None:
        if self.tampering is None or self.target is not part:
            self.wrong.append(f"I31: {name} was left alone and is refused: {text}")
            raise _Over
        self.tampering.is_noticed = True
        if Path(name).name not in text and "catalog" not in text:
            self.wrong.append(f"the refusal of {name} does not name it: {text}")

    def _opened_again(self, part: _Part) -> dict[int, bytes]:
        assert self.tampering is not None
        how = self.tampering.how
        try:
            return part.open(self.data)
        except StoreFailed as error:
            self.wrong.append(f"I31: the right log of {part.name} is back ({how}), and it is refused: {error}")
            raise _Over from None

    def _accepted(self, part: _Part) -> dict[int, bytes]:
        """Take the store without what is gone; returns what it holds then, which counts as acknowledged."""
        assert self.tampering is not None
        how = self.tampering.how
        points, self.points = self.points, None
        self._stop()
        try:
            offline.accept_loss(self.data, part.number)
        except StoreFailed as error:
            if "Give it up: duobus store replace" not in str(error):
                self.wrong.append(f"the loss of {part.name} ({how}) cannot be accepted: {error}")
            raise _Over from None
        except ConfigurationError as error:
            self.wrong.append(f"{part.name} is refused ({how}), and its loss cannot be accepted: {error}")
            raise _Over from None
        part.is_loss_accepted = True
        # What is put back of the time before would be taken for what came after.
        part.copies.clear()
        self.points = points
        self._open_catalog()
        for one in self.parts:
            if one is not part:
                self.open(one)
        try:
            found = part.open(self.data)
        except StoreFailed as error:
            self.wrong.append(f"the loss of {part.name} ({how}) was accepted, and it is refused: {error}")
            raise _Over from None
        # A fragment that was made a moment before may be gone as well; a broker refuses such a store.
        if part.source.next_count <= part.highest and not part.is_made_anew:
            self.wrong.append(f"I7: store {part.number} gives count {part.source.next_count} out again after: {how}")
        return found

    def _open_catalog(self) -> None:
        catalog = self.catalog = SqliteCatalog(self.data / _CATALOG)
        try:
            contents = catalog.read()
        except StoreFailed as error:
            self._refused(None, str(error), _CATALOG)
            self.put_back()
            catalog = self.catalog = SqliteCatalog(self.data / _CATALOG)
            try:
                contents = catalog.read()
            except StoreFailed as again:
                self.wrong.append(f"I31: the right catalog is back, and it is refused: {again}")
                raise _Over from None
        if not contents.stores:
            catalog.identify(1)
        for part in self.parts:
            if part.number not in {row.store_id for row in contents.stores}:
                catalog.add_store(part.number, part.name)
        found = {row.path for row in contents.entities if row.state == "live"}
        if not self.entities <= found <= self.entities | {self.doubtful_entity}:
            how = self.tampering.how if self.tampering is not None and self.target is None else "nothing"
            self.wrong.append(f"I1: entities {sorted(self.entities ^ found)} are lost or back after: {how}")
            raise _Over
        self.entities = found
        if self.target is None and self.tampering is not None:
            self.tampering.end()
            self.tampering = None

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing that a broker does, or that is done to its files."""
        rng = self.rng
        self._now_ns += int(rng.choice(_PAUSES_S) * 1e9)
        part = rng.choice(self.parts)
        if rng.random() < 0.15:
            self.keep()
        if self.tampering is None and rng.random() < 0.1:
            self.tamper(is_running=True)
        what = rng.choices(("send", "complete", "pass", "checkpoint", "room", "create"), (8, 4, 5, 2, 1, 3))[0]
        if what == "create":
            self._create()
            return
        assert part.store is not None
        try:
            if what == "send":
                part.send([rng.randbytes(rng.choice((10, 300, 9_000))) for _ in range(rng.randint(1, 4))])
            elif what == "complete":
                part.complete(rng)
            elif what == "pass":
                part.store.checkpoint_aside()
                part.noted = len(part.states) - 1
            elif what == "checkpoint":
                part.store.checkpoint()
                part.noted = len(part.states) - 1
            else:
                part.store.make_room(self._log(part).stat().st_size + 50_000 if self._log(part).exists() else 0)
        except StoreFailed as error:
            self._refused(part, str(error), part.name)
            part.store._abandon("failed")
            part.store = None
            # As the supervisor of a store does.
            self.stamp()
            self.open(part)
        self.stamp()

    def _create(self) -> None:
        name = self.doubtful_entity = f"queue-{len(self.entities)}-{self._lives}-{self.rng.randrange(1000)}"
        assert self.catalog is not None
        try:
            self.catalog.mark_live(self.catalog.begin_create("n", "queue", name, b"{}", [SlotRow(0, 0, 1)]))
        except StoreFailed as error:
            self._refused(None, str(error), _CATALOG)
            self._open_catalog()
            return
        self.entities.add(name)
        self.doubtful_entity = ""

    def play(self) -> None:
        with suppress(_Over):
            for life in range(self.rng.randint(*LIVES) + 1):
                if life:
                    self.kill()
                    if self.tampering is None and self.rng.random() < 0.4:
                        self.tamper(is_running=False)
                self._live()
        self._copy = self._copy or self.data
        self.points = None
        self._stop()
        if self.tampering is not None:
            self.tampering.end()

    def _live(self) -> None:
        # The first life of all has to make the files.
        if self.parts[1].has_existed and self.rng.random() < 0.3:
            self.points = self.rng.randrange(_POINTS)
        try:
            self.start()
            if self.points is None and self.rng.random() < 0.5:
                self.points = self.rng.randrange(_POINTS)
            for _ in range(self.rng.randint(*STEPS)):
                self.step()
            if self.rng.random() < 0.2:
                for part in self.parts:
                    if part.store is not None:
                        part.store.close()
        except _Killed:
            pass


@contextmanager
def _watched(run: _Run) -> Iterator[None]:
    """Have kills strike between the steps of what guards a log, and note which marks are durable."""

    def around(target: Any, name: str, *, is_after: bool = True) -> AbstractContextManager[Any]:
        original = getattr(target, name)

        def call(*args: Any, **options: Any) -> Any:
            run.point()
            result = original(*args, **options)
            if is_after:
                run.point()
            return result

        return mock.patch.object(target, name, call)

    check, write = LogWatch.check, MarkFile.write

    def check_stamped(self: LogWatch, steps: int) -> None:
        run.stamp()
        check(self, steps)

    def write_mark(self: MarkFile, mark: Mark, *, is_durable: bool = False) -> None:
        is_durable = is_durable or self._fd is None
        run.point()
        write(self, mark, is_durable=is_durable)
        if is_durable:
            path = Path(self._path)
            run.durable_marks[path.name] = path.read_bytes()
        run.point()

    with ExitStack() as stack:
        for target, name in ((sqlite, "empty_log"), (log_watch, "put_aside"), (log_watch, "sync_folder")):
            stack.enter_context(around(target, name))
        stack.enter_context(around(LogWatch, "committed", is_after=False))
        stack.enter_context(around(CatalogConnection, "_bring_home"))
        stack.enter_context(mock.patch.object(LogWatch, "check", check_stamped))
        stack.enter_context(mock.patch.object(MarkFile, "write", write_mark))
        stack.enter_context(mock.patch.object(log_room, "FREE_LEAST_BYTES", 0))
        yield


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="duobus-logs-", dir=memory if memory.is_dir() else None) as folder:
        one = _Run(seed, Path(folder))
        (one.data / "stores").mkdir(parents=True, mode=0o700)
        with _watched(one):
            one.play()
    return [text.replace(folder, "") for text in one.wrong]


# -- planted bugs -----------------------------------------------------------------------------------------------


@contextmanager
def mark_ignored() -> Iterator[None]:
    """A store is opened with whatever log is beside it."""
    with mock.patch.object(log_watch, "read_mark", return_value=None):
        yield


@contextmanager
def names_not_looked_at() -> Iterator[None]:
    """Commits go to the log that is open, whatever has become of its name."""
    with mock.patch.object(LogWatch, "check_names"):
        yield


@contextmanager
def folder_believed_at_once() -> Iterator[None]:
    """A folder's time is believed although a change within the same tick would not show."""
    with mock.patch.object(log_watch, "_SETTLED_NS", -1):
        yield


@contextmanager
def mark_ahead() -> Iterator[None]:
    """A mark says what is not in the log yet."""
    original = LogWatch.copied

    def copied(self: LogWatch, pages: int, steps: int) -> None:
        original(self, pages, steps + 2)

    with mock.patch.object(LogWatch, "copied", copied):
        yield


@contextmanager
def mark_not_synced() -> Iterator[None]:
    """A mark says only in memory that a log is in use."""

    def committed(self: LogWatch, steps: int) -> None:
        if self._fd is not None and not self._is_in_use:
            self._mark.write(Mark(True, steps, 32))
            self._is_in_use = True

    with mock.patch.object(LogWatch, "committed", committed):
        yield


@contextmanager
def lengths_not_looked_at() -> Iterator[None]:
    """A log may be shorter than what is in it."""
    with mock.patch.object(LogWatch, "see_pages", return_value=0):
        yield


@contextmanager
def restart_not_noted() -> Iterator[None]:
    """A mark does not say that a log may start afresh."""
    with mock.patch.object(LogWatch, "copies"):
        yield


@contextmanager
def older_catalog_believed() -> Iterator[None]:
    """A catalog is read with whatever log is beside it."""
    with mock.patch.object(catalog_log, "read_mark", return_value=None):
        yield


BUGS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    "mark-ignored": mark_ignored,
    "names-not-looked-at": names_not_looked_at,
    "folder-believed-at-once": folder_believed_at_once,
    "mark-ahead": mark_ahead,
    "mark-not-synced": mark_not_synced,
    "lengths-not-looked-at": lengths_not_looked_at,
    "restart-not-noted": restart_not_noted,
    "older-catalog-believed": older_catalog_believed,
}
