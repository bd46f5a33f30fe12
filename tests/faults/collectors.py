"""Maintenance in a story: collectors, pinners, snapshot compactors, sealers, copiers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.history import PENDING_S
from tests.faults.key_rollers import roll_keys_up
from tests.faults.store import LOG, SimStore
from wal3_core import InvalidRequestError, LogError, LogNotFoundError, LogReader, LogWriter, Message
from wal3_core.errors import CollectionRefusedError, MissingError
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import MANIFEST
from wal3_core.format.vacancy import Vacancy, VacancyKind
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.copy.copier import CopyReport, LogAt, copy
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.log.maintain.sealer import create_successor, migrate, seal
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.read.reader import pinned_records
from wal3_core.log.read.succession import records_across
from wal3_core.options import CollectorOptions, RetryOptions, SnapshotCompactorOptions, WriterOptions
from wal3_core.store.documents.pin_store import PinStore

if TYPE_CHECKING:
    from tests.faults.actors import Stage
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess

COPY, DOOMED, SUCCESSOR = "copy", "doomed", "successor"


def collector_options(interval_s: float) -> CollectorOptions:
    """Allow everything to be deleted, quickly and a few objects at a time."""
    return CollectorOptions(
        interval_s=interval_s,
        fraction_max=1.0,
        orphans_max=3,
        deletes_per_s=1000.0,
        deletes_ahead=2,
        retry=RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5),
    )


@dataclass(frozen=True, slots=True)
class Collecting:
    """Collects repeatedly, with the interval of the whole story."""

    rounds: int
    pause_s_max: float
    log: str = LOG

    def play(self, stage: Stage, process: SimProcess) -> None:
        options = collector_options(stage.world.shared.interval_s)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pause_s_max)
            try:
                done = collect(SimStore(stage.world, process), self.log, options=options, runtime=process)
            except (LogNotFoundError, CollectionRefusedError):
                continue
            except MissingError as error:
                # The interval is shorter than a pass: another collector was quicker.
                if error.path in stage.world.names[self.log].life.referenced():
                    stage.excuse(error)
                stage.world.fired["a collector was overtaken"] += 1
            except LogError as error:
                stage.excuse(error)
            else:
                held = any(deleted.num_held for deleted in done.deleted)
                stage.world.fired["a pin held what was collected"] += held
                stage.world.fired["collection waited"] += done.wait_s > 0


@contextlib.contextmanager
def excused(stage: Stage) -> Iterator[None]:
    """Ignore an error that this world explains."""
    try:
        yield
    except LogError as error:
        stage.excuse(error)


@dataclass(frozen=True, slots=True)
class Pinning:
    """Pins the log, reads all that it pinned later, deletes the pin; then again, at once, under the same name."""

    after_s: float
    for_s: float
    rounds: int = 1

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, name = SimStore(stage.world, process), process.name
        for number in range(self.rounds):
            # Every other time the name is used again at once.
            stage.simulation.pause(self.after_s if number % 2 == 0 else 0.0)
            pins = PinStore(store, LOG, runtime=process, retry=RetryOptions(attempts_max=3, pause_s_max=0.5))
            manifest = self._pin(stage, pins, name)
            if manifest is None:
                continue
            life = stage.world.names.lives[manifest.log_id]
            if life.over_s > stage.simulation.now_s:
                life.pinned(name, manifest)
            stage.world.fired["pinned"] += 1
            stage.simulation.pause(self.for_s)
            try:
                self._read(life, store, name, manifest)
                life.pins.pop(name, None)
                pins.delete(name)
            except LogError as error:
                life.pins.pop(name, None)
                stage.excuse(error)

    def _pin(self, stage: Stage, pins: PinStore, name: str) -> Manifest | None:
        """Try again when the pin could not be finished, or when the deleted one is still there."""
        for _ in range(3):
            try:
                return pins.create(name, reason="a long read").manifest
            except InvalidRequestError:
                with excused(stage):
                    pins.delete(name)
            except LogError as error:
                stage.excuse(error)
        return None

    def _read(self, life: Oracle, store: SimStore, name: str, manifest: Manifest) -> None:
        found = [Message(r.body, r.key) for r in pinned_records(store, LOG, name, runtime=store.process)]
        assert found == life.messages(manifest), f"pin {name}: read otherwise"


@dataclass(frozen=True, slots=True)
class Packing:
    """Repacks the manifest's tree, and rolls keys up."""

    rounds: int
    pause_s_max: float
    options: SnapshotCompactorOptions
    log: str = LOG

    def play(self, stage: Stage, process: SimProcess) -> None:
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pause_s_max)
            store = SimStore(stage.world, process)
            try:
                done = SnapshotCompactor(store, self.log, options=self.options, runtime=process).compact()
            except LogNotFoundError:
                continue
            except LogError as error:
                stage.excuse(error)
            else:
                stage.world.fired["packed"] += done.num_steps > 0
                stage.world.fired["packing overtaken"] += done.num_overtaken > 0
                roll_keys_up(stage, process, self.log)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Seals the log at some moment, and may begin its successor."""

    after_s: float
    successor: str | None = None

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        began_s = stage.simulation.now_s
        stage.history.sealed_between_s = (began_s, PENDING_S)
        for _ in range(4):
            try:
                self._seal(SimStore(stage.world, process), process)
            except LogNotFoundError:
                return
            except LogError as error:
                stage.excuse(error)
            else:
                stage.history.sealed_between_s = (began_s, stage.simulation.now_s)
                stage.world.fired["migrated"] += self.successor is not None
                return

    def _seal(self, store: SimStore, process: SimProcess) -> None:
        if self.successor is None:
            seal(store, LOG, reason="the end", sealed_by=process.name, runtime=process)
        else:
            migrate(store, LOG, self.successor, reason="it moves", runtime=process)


def check_successor(stage: Stage, operator: SimProcess) -> None:
    """A repeated call finishes a migration that was cut short; nothing lies between the two logs."""
    manifest, store = stage.world.oracle.manifest, SimStore(stage.world, operator)
    if manifest is None or manifest.seal is None or manifest.seal.successor is None:
        return
    successor = create_successor(store, LOG, runtime=operator)
    with LogWriter.open(store, successor, runtime=operator) as writer:
        # With a key, as the sealed log's policy may ask for one.
        assert writer.append(b"moved", key=b"moved").offset == manifest.next.position.offset
    found = [Message(r.body, r.key) for r in records_across(store, LOG, runtime=operator)]
    assert found == [*stage.world.oracle.messages(manifest), Message(b"moved", b"moved")]


@dataclass(frozen=True, slots=True)
class Destroying:
    """Begins a log of its own, and destroys it while it is appended to."""

    after_s: float
    options: WriterOptions

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, destroyed = SimStore(stage.world, process), list[str]()
        try:
            writer = LogWriter.open_or_create(store, DOOMED, options=self.options, runtime=process)
        except LogError as error:
            stage.excuse(error)
            return
        task = stage.simulation.spawn(process, f"{process.name}:appends", lambda: _append_on(writer, destroyed))
        stage.simulation.pause(self.after_s)
        try:
            destroy(store, DOOMED, runtime=process)
        except LogError as error:
            stage.excuse(error)
        else:
            destroyed.append(DOOMED)
            stage.world.fired["destroyed"] += 1
        stage.simulation.block(lambda: task.over, None)
        writer.close()


def _append_on(writer: LogWriter, destroyed: list[str]) -> None:
    """Append until it fails, as it must once the log is destroyed."""
    for number in range(20):
        after = list(destroyed)
        try:
            writer.append(f"{number}".encode())
        except LogError:
            return
        assert not after, "acknowledged on a log that was destroyed"


def check_destroyed(stage: Stage, operator: SimProcess, log: str) -> None:
    """Destroying the remains of a log, and of every log of its name, leaves only the vacancy."""
    with contextlib.suppress(LogNotFoundError):
        destroy(SimStore(stage.world, operator), log, also_pinned=True, runtime=operator)
    left = [meta.path for meta in stage.world.objects.list_objects(f"{log}/")]
    assert left in ([], [f"{log}/{MANIFEST}"]), f"destroyed, and not gone: {left}"
    entry = stage.world.names[log].entry
    assert entry is None or (isinstance(entry, Vacancy) and entry.kind is VacancyKind.DESTROYED), (
        f"still there: {entry}"
    )


@dataclass(frozen=True, slots=True)
class Copying:
    """Copies the log while it is written and collected; a copy that was cut short is finished in the end."""

    after_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        store, oracle = SimStore(stage.world, process), stage.world.oracle
        before, prunes = len(oracle.records), oracle.seen["pruned"]
        try:
            copied = copy(LogAt(store, LOG), LogAt(store, COPY), runtime=process)
        except InvalidRequestError as error:
            if "expected it to stay until the copy is whole" in str(error):
                # Only its owner deletes a copy's pin.
                stage.fail(f"a copy was without its pin: {error}")
            return
        except LogError as error:
            stage.excuse(error)
            return
        check_copied(stage, copied, oracle, before)
        stage.world.fired["copied while appended to"] += len(oracle.records) > before
        stage.world.fired["copied while collected"] += oracle.seen["pruned"] > prunes
        check_copy(stage)


def check_copied(stage: Stage, copied: CopyReport, source: Oracle, held: int) -> None:
    """A copy that was not begun earlier holds all records that its source held when it was requested."""
    if not copied.resumed and source.over_s > stage.simulation.now_s and copied.next_offset <= held:
        stage.fail(f"a copy reported as new holds less than its source: {copied}, and {held} records")


def check_copy(stage: Stage) -> None:
    """A copy reads as it was when it became a log, when it was compared with its source."""
    reader = LogReader.open(stage.world.objects, COPY, runtime=stage.world.network)
    manifest = reader.manifest()
    found = [Message(record.body, record.key) for record in reader.records()]
    assert found == stage.world.names[COPY].life.messages(manifest), "the copy holds something else"
