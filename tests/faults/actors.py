"""The actors of a story: each is a process of its own, and a wrong answer to one fails the story."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tests.faults.history import PENDING_S, Append, History, Read, check_follower
from tests.faults.store import LOG, SimStore, World
from wal3_core import (
    AppendReplacedError,
    ClosedError,
    ConditionNotMetError,
    ContentionError,
    CorruptError,
    GarbageCollectedError,
    HaltedError,
    LogError,
    LogNotFoundError,
    LogReader,
    LogReplacedError,
    LogWriter,
    Message,
    NotDurableError,
    OverloadedError,
    ReaderOptions,
    SealedError,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
    scrub,
)
from wal3_core.errors import MissingError, UnmarkedError
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.format.paths import CURSOR_FOLDER
from wal3_core.options import Limits, RetryOptions, SnapshotOptions
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import log_store

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess, Simulation, Task


@dataclass
class Stage:
    """The state that the actors share."""

    simulation: Simulation
    world: World
    history: History = field(default_factory=History)
    # Those of the other logs that a fleet writes.
    histories: dict[str, History] = field(default_factory=dict)
    # Whether the name is used again.
    lives: bool = False
    # Whether the log is compacted by key; then every record needs one.
    compacts: bool = False
    tombstones: int = 0
    processes: dict[str, SimProcess] = field(default_factory=dict)

    def history_of(self, log: str) -> History:
        """Return what callers saw of a log."""
        return self.history if log == LOG else self.histories.setdefault(log, History())

    def keyed(self, dice: Random, name: str) -> Message:
        """Make a record with a key that others have, too; or the only tombstone of its key."""
        body, kind = name.encode() + b"." * dice.choice((0, 0, 60)), dice.random()
        if kind < 0.2:
            self.tombstones += 1
            return Message(None, b"t%d" % self.tombstones)
        shared = dice.choice((b"", b"key", b"key\0", b"k" * 40))
        return Message(body, b"t%d" % dice.randrange(1, self.tombstones + 3) if kind < 0.6 else shared)

    def unexpected(self, error: LogError) -> bool:
        """Whether nothing that happens in this world explains an error."""
        if isinstance(error, LogReplacedError):
            return not self.lives
        if isinstance(error, MissingError):
            # Maintenance of a log that is being destroyed may miss an object before it misses the log.
            return not self.world.names[LOG].turns
        if isinstance(error, GarbageCollectedError):
            begins = max((life.begins for life in self.world.names.lives.values()), default=1)
            seen = self.world.oracle.seen
            return not seen["announced"] and not seen["records superseded or expired"] and begins == 1
        if isinstance(error, CorruptError):
            return not self.world.plan.may_spoil
        # Of a document that two others changed meanwhile, a refusal does not say whether it was replaced before that.
        not_known = "not known to be deleted: refused" in str(error) or "not known to be changed: refused" in str(error)
        return isinstance(error, UnavailableError) and self.world.plan.quiet and not not_known

    def excuse(self, error: LogError) -> None:
        """Ignore an error that this world explains; fail the story for one it does not."""
        if self.unexpected(error):
            self.fail(f"unexplained: {type(error).__name__}: {error}")

    def promised(self, log: str, append: Append) -> None:
        """Check that the records of an append are marked, from now on."""
        try:
            self.world.marks.promised(log, append.records, self.simulation.now_s)
        except AssertionError as error:
            self.simulation.failure = error
            raise

    def fail(self, how: str) -> None:
        """End the story: a promise was broken."""
        self.simulation.failure = AssertionError(how)
        raise self.simulation.failure


class Actor(Protocol):
    """The part of one process."""

    def play(self, stage: Stage, process: SimProcess) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """An actor that is one function."""

    run: Callable[[Stage, SimStore, SimProcess], None]

    def play(self, stage: Stage, process: SimProcess) -> None:
        try:
            self.run(stage, SimStore(stage.world, process), process)
        except LogError as error:
            stage.excuse(error)


def drawn_options(dice: Random) -> WriterOptions:
    """Make everything tiny, so that little work reaches every limit."""
    return WriterOptions(
        batch_bytes_max=dice.choice((1, 30, 300)),
        batch_age_s_max=dice.choice((0.0, 0.01, 0.1)),
        uploads_max=dice.choice((1, 3)),
        fragments_in_flight_max=dice.choice((1, 4)),
        bytes_held_max=dice.choice((20, 1000, 100_000)),
        contentions_max=dice.choice((0, 2, 8)),
        delivery_timeout_s=dice.choice((0.0, 2.0, 30.0)),
        retry=RetryOptions(pause_s_min=0.01, pause_s_max=0.5),
        snapshots=SnapshotOptions(
            fragments_per_snapshot=dice.choice((2, 4)),
            fragments_kept=dice.choice((0, 2)),
            snapshots_per_roll=2,
            snapshot_pointers_max=4,
            gc_interval_s=1,
        ),
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A server, which marks what it appends in a dirty log of its own; a restarted one has the same name."""

    name: str
    options: WriterOptions
    lanes_max: int

    def open(self, store: SimStore) -> DirtyLog:
        lanes_max, options = self.lanes_max, self.options
        return DirtyLog.open_or_create(store, self.name, lanes_max=lanes_max, options=options, runtime=store.process)


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends from several callers at once; creates the log when it finds none."""

    options: WriterOptions
    callers: int
    appends_max: int
    rounds: int = 1
    # If false, it waits for a missing log.
    creates: bool = True
    server: Server | None = None
    # If true, every record has a key.
    keyed: bool = False

    def play(self, stage: Stage, process: SimProcess) -> None:
        for number in range(self.rounds):
            self._play(stage, SimStore(stage.world, process), f"{process.name}/{number}")

    def _play(self, stage: Stage, store: SimStore, name: str) -> None:
        open_writer = LogWriter.open_or_create if self.creates else LogWriter.open
        try:
            marks = None if self.server is None else self.server.open(store)
            writer = open_writer(store, LOG, options=self.options, runtime=store.process, marks=marks)
        except LogError as error:
            stage.excuse(error)
            stage.simulation.pause(store.process.random.random() * 5 if self.rounds > 1 else 0.0)
            return
        opened = Opened(stage, store, writer, stage.simulation.now_s)
        tasks = [
            stage.simulation.spawn(store.process, f"{name}/{n}", lambda n=n: self._call(opened, f"{name}/{n}"))
            for n in range(self.callers)
        ]
        await_all(stage.simulation, tasks)
        writer.close()
        if marks is not None:
            marks.close()

    def _call(self, opened: Opened, name: str) -> None:
        stage = opened.stage
        dice = stage.simulation.dice(name)
        for index in range(dice.randrange(1, self.appends_max + 1)):
            if dice.random() < 0.3:
                stage.simulation.pause(dice.choice((0.01, 1.0, 20.0)))
            label = f"{name}/{index}"
            names = [f"{label}/{n}" for n in range(dice.choice((1, 1, 1, 3)))]
            records = tuple(stage.keyed(dice, name) if self.keyed else _message(dice, name) for name in names)
            timeout_s = stage.simulation.dice(label).choice((None, None, 0.0, 0.05))
            append = Append(records, stage.simulation.now_s, opened_s=opened.at_s, marked=self.server is not None)
            submit_once(stage, opened.store, opened.writer, append, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class Opened:
    """A writer, and the time it was opened."""

    stage: Stage
    store: SimStore
    writer: LogWriter
    at_s: float


def _message(dice: Random, name: str) -> Message:
    body = name.encode() + b"." * dice.choice((0, 0, 60))
    return dice.choice((Message(body), Message(body), Message(body, b"key"), Message(None, body)))


# From the narrower class to the wider.
OUTCOMES: dict[type[LogError], str] = {
    ContentionError: "contended",
    SealedError: "sealed",
    ConditionNotMetError: "unmet",
    UnmarkedError: "unmarked",
    OverloadedError: "overloaded",
    HaltedError: "halted",
    AppendReplacedError: "replaced",
    NotDurableError: "refused",
    UnknownDurabilityError: "unknown",
    ClosedError: "closed",
}


def append_once(
    stage: Stage,
    store: SimStore,
    writer: LogWriter,
    records: tuple[Message, ...],
    *,
    opened_s: float = PENDING_S,
) -> Append:
    """Append and record the outcome; ``opened_s`` is when the writer was opened, if the log may be replaced since."""
    return submit_once(stage, store, writer, Append(records, stage.simulation.now_s, opened_s=opened_s))


def submit_once(
    stage: Stage, store: SimStore, writer: LogWriter, append: Append, *, timeout_s: float | None = None
) -> Append:
    """Append and record the outcome; the caller waits for room so long."""
    stage.history.appends.append(append)
    with judged(stage, store, append):
        append.offset = store.process.wait(writer.submit_many(append.records, timeout_s=timeout_s)).offset
    return append


@contextmanager
def judged(stage: Stage, store: SimStore, append: Append, *, log: str = LOG) -> Iterator[None]:
    """Record the outcome of the block: an offset, nothing yet, or an error with the append's outcome."""
    try:
        yield
        append.outcome = "acked" if append.offset is not None else "pending"
    except tuple(OUTCOMES) as error:
        append.outcome = _outcome(stage, error)
        append.found = error.next_offset if isinstance(error, ConditionNotMetError) else None
        append.offset = error.offset if isinstance(error, UnmarkedError) else None
    if append.outcome == "pending":
        return
    explained = {
        "refused": store.troubles,
        "unknown": store.ambiguous or store.unread or (store.refused and stage.world.oracle.forgot(append.opened_s)),
        "unmarked": store.troubles or stage.world.marks.contended(store.process.name),
    }
    if not explained.get(append.outcome, True):
        stage.simulation.failure = AssertionError(f"nothing explains {append}")
    append.ended_s = stage.simulation.now_s
    stage.simulation.note(f"{append.records[0]} {append.outcome} {append.offset}")
    if append.marked and append.outcome == "acked":
        stage.promised(log, append)


def _outcome(stage: Stage, error: LogError) -> str:
    if isinstance(error, AppendReplacedError):
        stage.excuse(error)
    elif isinstance(error, NotDurableError) and isinstance(error.__cause__, LogNotFoundError):
        return "replaced" if stage.world.names[LOG].turns > 0 else "refused"
    return next(outcome for kind, outcome in OUTCOMES.items() if isinstance(error, kind))


@dataclass(frozen=True, slots=True)
class TailReader:
    """Follows the log from its first record on, and then the log that replaces it."""

    options: ReaderOptions
    rounds: int = 4

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, seen = SimStore(stage.world, process), Read(0.0, 1)
        for _ in range(self.rounds):
            try:
                reader = LogReader.open(store, LOG, options=self.options, runtime=process)
                log_id = reader.manifest().log_id
                if log_id != seen.log_id:
                    seen = Read(0.0, stage.world.names.lives[log_id].begins, log_id)
                    stage.history.reads.append(seen)
                found = []
                for record in reader.follow(seen.end, idle_s=5.0):
                    found.append(record)
                    seen.see(record, stage.simulation.now_s)
                    check_follower(found[-2:], stage.world.names.lives[seen.log_id].dropped)
            except LogNotFoundError:
                stage.simulation.pause(1.0)
            except MissingError as error:
                stage.fail(f"a reader missed something: {error}")
            except GarbageCollectedError as error:
                stage.excuse(error)
                life = stage.world.names.lives[seen.log_id].manifest
                assert life is not None
                seen = Read(0.0, life.first.position.offset, seen.log_id)
                stage.history.reads.append(seen)
            except LogError as error:
                stage.excuse(error)


@dataclass(frozen=True, slots=True)
class HistoryReader:
    """Reads stretches of the log repeatedly, from anywhere; sometimes so slowly that maintenance overtakes the read."""

    options: ReaderOptions
    passes: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/starts")
        reader: LogReader | None = None
        for _ in range(self.passes):
            stage.simulation.pause(dice.random() * 4)
            try:
                reader = reader or LogReader.open(store, LOG, options=self.options, runtime=process)
                self._read(stage, reader, dice)
            except MissingError as error:
                stage.fail(f"a reader missed something: {error}")
            except LogNotFoundError:
                reader = None
            except LogReplacedError as error:
                stage.excuse(error)
                # Otherwise it asks the same reader again.
                reader = reader if dice.random() < 0.3 else None
            except LogError as error:
                stage.excuse(error)

    def _read(self, stage: Stage, reader: LogReader, dice: Random) -> None:
        count = dice.choice((None, None, 3))
        first = reader.manifest().first.position.offset
        start = dice.choice((first, dice.randrange(first, reader.manifest().next.position.offset + 1)))
        read = Read(stage.simulation.now_s, start, reader.manifest().log_id)
        stage.history.reads.append(read)
        pause_s = dice.choice((0.0, 0.1, 0.3, 3.0))
        in_hand = reader.manifest()
        # The same offset expressed differently, as long as the loaded manifest decides it.
        begin = None if start == in_hand.first.position.offset else start
        for record in reader.records(begin, Limits(records=count), manifest=in_hand):
            if pause_s:
                stage.simulation.pause(pause_s)
            read.see(record, stage.simulation.now_s)
        read.finished = count is None


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Scrubs the log while everything else runs, and finds nothing wrong."""

    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * 10)
            held = len(stage.world.names[LOG].held)
            try:
                report = scrub(SimStore(stage.world, process), LOG, runtime=process)
            except LogNotFoundError:
                continue
            except LogError as error:
                stage.excuse(error)
                continue
            # A cursor created too late is reported until it is withdrawn.
            late = stage.world.oracle.seen["pruned"] > 0
            problems = [found for found in report.problems if not (late and found.path.startswith(CURSOR_FOLDER))]
            ended = stage.lives and (len(stage.world.names[LOG].held) > held or stage.world.names[LOG].copying)
            if problems and not ended and not stage.world.plan.may_spoil:
                stage.simulation.failure = AssertionError(f"scrub: {problems}")


@dataclass(frozen=True, slots=True)
class Maintainer:
    """Changes the manifest repeatedly without touching the log; writers have to follow."""

    changes: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        manifests = ManifestStore(log_store(SimStore(stage.world, process), LOG), process)
        for _ in range(self.changes):
            stage.simulation.pause(process.random.random())
            try:
                base = manifests.load()
                manifests.install(base.manifest, base)
            except LogNotFoundError:
                continue
            except LogError as error:
                stage.excuse(error)


@dataclass(frozen=True, slots=True)
class Reaper:
    """Kills a process, and may start a similar one on the content of the store."""

    victim: str
    after_s: float
    successor: Actor | None

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        stage.simulation.kill(stage.processes[self.victim])
        stage.world.fired["killed"] += 1
        if self.successor is not None:
            self.successor.play(stage, process)


@dataclass(frozen=True, slots=True)
class Freezer:
    """Suspends a process for longer than a collection waits, with or without its clocks."""

    victim: str
    after_s: float
    for_s: float
    clock_stops: bool

    def play(self, stage: Stage, process: SimProcess) -> None:  # noqa: ARG002 - the victim is another
        stage.simulation.pause(self.after_s)
        stage.simulation.freeze(stage.processes[self.victim], self.for_s, clock_stops=self.clock_stops)
        stage.world.fired["frozen"] += 1


def await_all(simulation: Simulation, tasks: Sequence[Task]) -> None:
    simulation.block(lambda: all(task.over for task in tasks), None)
