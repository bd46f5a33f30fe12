"""What each job of submitted.py begins with, and what must be true afterwards, judged without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.cluster.submitted import AT_ONCE, COLLECTED, DIRTY, KEYED, PLANNED, READ
from tests.large_logs import reachable
from tests.spark.logs import TREE, fill
from tests.spec.rolling import grow
from tests.stores import life_store
from wal3_core import Cleanup, CursorStore, LogPosition, LogReader, LogWriter, Message, Policy, WriterOptions, scrub
from wal3_core.format.paths import FRAGMENT_FOLDER
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from tests.cluster.submitted import Done

FRAGMENTS = 24
KEYS, KEYED_RECORDS = 50, 1200


def prepare(store: ObjectStore, *jobs: str) -> None:
    """Fill the logs that jobs work on."""
    for begin in dict.fromkeys(_BEGINNINGS[job] for job in jobs):
        begin(store)


def check(job: str, store: ObjectStore, done: Done) -> None:
    """Fail unless a job did what it must, each thing once, and reported that."""
    _CHECKS[job](store, json.loads(json.dumps(done["found"])))


def _nothing(_store: ObjectStore) -> None:
    pass


def _logs_to_read(store: ObjectStore) -> None:
    for log in READ:
        fill(store, log, fragments=FRAGMENTS, snapshots=TREE)


def _logs_to_plan(store: ObjectStore) -> None:
    for log in READ:
        LogWriter.open_or_create(store, log).close()
    for log in PLANNED:
        _read_up_to(store, log, 191)


def _pruned_logs(store: ObjectStore) -> None:
    for log in COLLECTED:
        _read_up_to(store, log, 191)
        collector = Collector(store, log, options=AT_ONCE)
        collector.prune(collector.announce(collector.plan()))


def _read_up_to(store: ObjectStore, log: str, offset: int) -> None:
    fill(store, log, fragments=FRAGMENTS, snapshots=TREE)
    CursorStore(store, log).create("reader", LogPosition(offset, 0))


def _keyed_log(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, KEYED, options=WriterOptions(snapshots=TREE)) as writer:
        for start in range(0, KEYED_RECORDS, 100):
            writer.append_many([Message(b"%d" % at, b"%d" % (at % KEYS)) for at in range(start, start + 100)])
    PolicyStore(store, KEYED).change(lambda _: Policy(cleanup=Cleanup.COMPACT))


def _marked_logs(store: ObjectStore) -> None:
    for number in range(6):
        grow(store, f"marked/{number}", 2, dirty_log=DIRTY[number % 2])


_BEGINNINGS = {
    "read": _logs_to_read,
    "write": _nothing,
    "stream": _logs_to_read,
    "verify": _logs_to_read,
    "plan": _logs_to_plan,
    "delete": _pruned_logs,
    "compact": _keyed_log,
    "roll_up": _marked_logs,
}


def _read(store: ObjectStore, found: object) -> None:
    records = ((log, each) for log in READ for each in _reader(store, log).records())
    assert found == sorted([log, each.offset, _text(each.body)] for log, each in records)


def _write(store: ObjectStore, found: object) -> None:
    assert found is True
    for log, rest in (("written/0", 0), ("written/1", 1)):
        assert sorted(_numbers(store, log)) == list(range(rest, 4000, 2)), log
        assert scrub(store, log).sound


def _stream(store: ObjectStore, found: object) -> None:
    assert found is True
    expected = sorted((each.key or b"", each.body or b"") for log in READ for each in _reader(store, log).records())
    assert sorted((each.key or b"", each.body or b"") for each in _reader(store, "copy").records()) == expected


def _verify(_store: ObjectStore, found: object) -> None:
    records = 10 * FRAGMENTS
    assert found == [[READ[0], True, records], [READ[1], True, records], ["nowhere", False, 0]]


def _plan(store: ObjectStore, found: object) -> None:
    plans = [[log, True, str(Collector(store, log, options=AT_ONCE).plan()), None] for log in PLANNED]
    assert found == [*([log, False, "None", "CollectionRefusedError"] for log in READ), *plans]


def _delete(store: ObjectStore, found: object) -> None:
    assert found == [[log, True, True] for log in COLLECTED]
    for log in COLLECTED:
        life = life_store(store, log)
        held = {each.path for each in life.list_objects(FRAGMENT_FOLDER)}
        assert held == {path for path in reachable(store, log) if path.startswith(FRAGMENT_FOLDER)}, log
        assert not list(Deleter(store, log).documents())
        assert scrub(store, log).sound


def _compact(store: ObjectStore, found: object) -> None:
    assert found == KEYED_RECORDS - KEYS
    expected = list(range(KEYED_RECORDS - KEYS, KEYED_RECORDS))
    assert _numbers(store, KEYED) == expected
    assert scrub(store, KEYED).sound


def _roll_up(_store: ObjectStore, found: object) -> None:
    assert found == [[name, [f"marked/{number}" for number in range(turn, 6, 2)]] for turn, name in enumerate(DIRTY)]


_CHECKS = {
    "read": _read,
    "write": _write,
    "stream": _stream,
    "verify": _verify,
    "plan": _plan,
    "delete": _delete,
    "compact": _compact,
    "roll_up": _roll_up,
}


def _reader(store: ObjectStore, log: str) -> LogReader:
    return LogReader.open(store, log)


def _numbers(store: ObjectStore, log: str) -> list[int]:
    return [int(each.body) for each in _reader(store, log).records() if each.body is not None]


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode()
