"""What each role in deploy/iam does all day, by the library's public calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.spec.rolling import begun, mark
from wal3_core import (
    Cleanup,
    CollectorOptions,
    CursorStore,
    Fleet,
    FleetOptions,
    KeyCompactor,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    PinStore,
    PolicyStore,
    RollUp,
    RollUpOptions,
    SnapshotCompactor,
    WriterOptions,
    bootstrap,
    collect,
    copy,
    create_successor,
    destroy,
    list_logs,
    migrate,
    open_pinned,
    pinned_records,
    plan_destroy,
    records_across,
    scrub,
    seal,
    update_copy,
)
from wal3_core.fleet.identity import store_identity
from wal3_core.fleet.survey import survey_log
from wal3_core.options import SnapshotOptions
from wal3_core.store.doctor import examine
from wal3_core.store.object_store import ObjectStore

LOG = "orders"
UNPINNED = "payments"
COMPACTED = "users"
CURSOR = "billing"
PIN = "audit"
SERVER = "server-1"
# The dirty logs of a busy server: its first, and one of its lanes.
DIRTY = (f"dirty/{SERVER}", f"dirty/{SERVER}/1")
MARKED = "refunds"
# Small, so that a few appends make snapshots, and a second level of them.
SNAPSHOTS = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1, snapshots_per_roll=2)
APPENDS = 12
AT_ONCE = CollectorOptions(interval_s=0, fraction_max=1)


def fill(store: ObjectStore) -> None:
    """Make two logs with snapshots and a cursor, one of them pinned, too."""
    for log in (LOG, UNPINNED):
        with LogWriter.open_or_create(store, log, options=WriterOptions(snapshots=SNAPSHOTS)) as writer:
            for number in range(APPENDS):
                writer.append(b"%d" % number)
        CursorStore(store, log).create(CURSOR, LogPosition(APPENDS // 2, 0))
    PinStore(store, LOG).create(PIN, reason="kept")
    with LogWriter.open_or_create(store, COMPACTED, options=WriterOptions(snapshots=SNAPSHOTS)) as writer:
        for number in range(APPENDS):
            writer.append(b"%d" % number, key=b"%d" % (number % 5))
    # Passes of another process have left key roll-ups, and fragments to be deleted.
    PolicyStore(store, COMPACTED).change(lambda policy: replace(policy, cleanup=Cleanup.BOTH, receipt_retention_s=0))
    KeyCompactor(store, COMPACTED).compact(force=True)
    with LogWriter.open(store, COMPACTED, options=WriterOptions(snapshots=SNAPSHOTS)) as writer:
        for number in range(APPENDS):
            writer.append(b"%d" % number, key=b"%d" % (number % 5))
    CursorStore(store, COMPACTED).create(CURSOR, LogPosition(2 * APPENDS - 1, 0))
    with Fleet.open(store, server=SERVER, options=FleetOptions(creates=True)) as fleet:
        for log in (MARKED, f"{MARKED}/eu"):
            fleet.append(log, b"marked")
    for log in (MARKED, f"{MARKED}/eu"):
        _mark_what_is_under_way(store, log)


def _mark_what_is_under_way(store: ObjectStore, log: str) -> None:
    """Mark a fragment that is not committed, in a lane, and long ago: a server's clock may have whole seconds."""
    marker = begun(store, log)
    mark(store, replace(marker, limit=LogPosition(marker.limit.offset, 1), first_us=1), dirty_log=DIRTY[1])


def read(store: ObjectStore) -> None:
    """Find logs and documents, present and missing; read, scrub and survey a log."""
    assert LOG in list(list_logs(store))
    reader = LogReader.open(store, LOG)
    assert len(list(reader.records())) == len(list(records_across(store, LOG)))
    assert reader.is_current(reader.manifest())
    assert next(iter(reader.follow())).offset == reader.manifest().first.position.offset
    open_pinned(store, LOG, PIN)
    assert len(list(pinned_records(store, LOG, PIN))) == APPENDS
    assert scrub(store, LOG).sound
    for name in (CURSOR, "none"):
        assert (CursorStore(store, LOG).load(name) is None) == (name == "none")
    assert CURSOR in CursorStore(store, LOG).list()
    assert set(PinStore(store, LOG).list()) >= {PIN}
    PolicyStore(store, LOG).load()
    store_identity(store)
    assert survey_log(store, LOG, CollectorOptions()).plan is not None
    assert plan_destroy(store, LOG).num_objects > 0
    with pytest.raises(LogNotFoundError):
        LogReader.open(store, f"{LOG}/none").manifest()


def consume(store: ObjectStore) -> None:
    """Read, and say how far: make, move and delete cursors."""
    read(store)
    cursors = CursorStore(store, LOG)
    records = list(LogReader.open(store, LOG).records())
    witness = cursors.create("mailing", LogPosition(records[0].offset, records[0].timestamp_us))
    witness = cursors.save("mailing", LogPosition(records[-1].offset + 1, records[-1].timestamp_us), witness)
    cursors.save("mailing", LogPosition(records[0].offset, 0), witness)
    cursors.delete("mailing")


def write(store: ObjectStore) -> None:
    """Append to this log and to a new one below it, beside a second writer."""
    for log in (LOG, f"{LOG}/eu"):
        options = WriterOptions(snapshots=SNAPSHOTS)
        with LogWriter.open_or_create(store, log, options=options, ordered=True) as writer:
            for _ in range(APPENDS):
                position = writer.append(b"new")
            with LogWriter.open(store, log) as other:
                other.append(b"between", expect_next=position.offset + 1)
            writer.append(b"last")
            writer.resume()
    with Fleet.open(store, server=SERVER, options=FleetOptions(creates=True)) as fleet:
        fleet.append(f"{MARKED}/us", b"marked")
    _mark_what_is_under_way(store, f"{MARKED}/us")
    read(store)


def maintain(store: ObjectStore) -> None:
    """Collect everything behind the cursor, the orphans too, repack the snapshots, and roll the dirty logs up."""
    read(store)
    roll_up(store)
    for log in (LOG, UNPINNED, COMPACTED):
        SnapshotCompactor(store, log).compact()
        collect(store, log, options=AT_ONCE)
    # Finds the lists of what a pass dropped, and deletes them.
    collect(store, COMPACTED, options=AT_ONCE)
    assert not any("DROPPED" in meta.path for meta in store.list_objects(f"{COMPACTED}/"))
    assert survey_log(store, LOG, CollectorOptions()).refusal is None
    assert store_identity(store, create=True) is not None


def compact_by_key(store: ObjectStore) -> None:
    """Make a pass of key compaction over a log, and verify it."""
    read(store)
    compactor = KeyCompactor(store, COMPACTED)
    assert compactor.compact(force=True).num_superseded
    verified = compactor.verify()
    assert verified is not None
    assert verified.holds


def roll_up(store: ObjectStore) -> None:
    """Roll the dirty logs up twice, and collect them; one log stays marked at first, and a fence moves."""
    for log in DIRTY:
        for take_all in (False, True):
            rollup = RollUp(store, log, options=RollUpOptions(take_all=take_all, undecided_s=0))
            plan = rollup.read()
            assert plan.guessed is None
            rollup.finish(plan, plan.selected or [MARKED])
        assert not RollUp(store, log).read().logs
        collect(store, log, options=AT_ONCE)


def administer(store: ObjectStore) -> None:
    """Do everything that is done by hand, the doctor included."""
    assert examine(store).suitable
    consume(store)
    write(store)
    maintain(store)
    PolicyStore(store, LOG).change(lambda policy: replace(policy, retention_s=60))
    PinStore(store, LOG).delete(PIN)
    PinStore(store, LOG).create(PIN, reason="again")
    copy(LogAt(store, LOG), LogAt(store, "copied"), with_cursors=True)
    bootstrap(store, "begun", [])
    migrate(store, LOG, "orders-2027", reason="a log a year")
    seal(store, "copied", reason="over", successor="copied-2")
    create_successor(store, "copied")
    for log in (LOG, "orders-2027", "copied", "begun"):
        destroy(store, log, also_pinned=True)


WORK: dict[str, Callable[[ObjectStore], None]] = {
    "reader": read,
    "consumer": consume,
    "writer": write,
    "maintenance": maintain,
    "compactor": compact_by_key,
    "admin": administer,
}


def back_up(store: ObjectStore, elsewhere: ObjectStore) -> None:
    """Copy a log with its cursors to another store."""
    read(store)
    copied = copy(LogAt(store, LOG), LogAt(elsewhere, LOG), with_cursors=True)
    assert copied.num_records == APPENDS
    assert copied.pins_left == ()
    assert update_copy(LogAt(store, LOG), LogAt(elsewhere, LOG), with_cursors=True).num_records == 0
