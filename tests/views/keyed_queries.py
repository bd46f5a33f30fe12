"""What every query of a keyed log answers, beside the answer of brute force over the log's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

from wal3_core import Excluded, Included, KeyedLog, KeyedOptions, LogReader, MemoryStore, Record, WriterOptions
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore

LOG = "a"
# Keys that a careless encoding of key and number would confuse.
KEYS = [b"", b"a", b"a\0", b"a\0\0", b"ab", b"a\xff", b"b", b"k" * 1024]
PREFIXES = [b"", b"a", b"a\0", b"a\xff", b"k" * 1023, b"zz"]
TREE = WriterOptions(
    snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)
)
OPTIONS = KeyedOptions(writer=TREE)


def open_keyed(store: ObjectStore, options: KeyedOptions = OPTIONS) -> KeyedLog:
    return KeyedLog.open(store, LOG, options=options)


def records_of(store: ObjectStore) -> list[Record]:
    return list(LogReader.open(store, LOG).records())


def check_queries(log: KeyedLog, held: Sequence[Record], bounds: tuple[int, int], *, budget: int = 0) -> None:
    """Check every query of every key over a range, and over the whole log, against the records that the log holds."""
    start, limit = bounds
    inside = [record for record in held if start <= record.offset < limit]
    for key in KEYS:
        wanted = [record for record in inside if record.key == key]
        before = log.count_bounds(key, start, limit, requests_max=budget)
        assert before.lo <= len(wanted) <= before.hi
        assert log.count(key, start, limit) == len(wanted)
        assert list(log.scan(key, start, limit)) == wanted
        assert log.count(key) == sum(record.key == key for record in held)
        assert log.tail(key) == max((record.offset for record in held if record.key == key), default=0)
        after = log.count_bounds(key, start, limit, requests_max=0)
        assert (after.lo, after.hi) == (len(wanted), len(wanted))
    counted = Counter(record.key for record in inside if record.key is not None)
    for prefix in PREFIXES:
        wanted = [record for record in inside if record.key is not None and record.key.startswith(prefix)]
        assert list(log.scan_prefix(prefix, start, limit)) == wanted
        assert log.keys(prefix, start, limit) == sorted(key for key in counted if key.startswith(prefix))
    for low, high in product([b"", b"a", b"a\0", b"k" * 70], repeat=2):
        wanted = [record for record in inside if record.key is not None and low <= record.key < high]
        assert list(log.scan_keys(low, high, start, limit)) == wanted
        wanted = [record for record in inside if record.key is not None and low < record.key <= high]
        assert list(log.scan_keys(Excluded(low), Included(high), start, limit)) == wanted


def restored_under(store: MemoryStore, work: Callable[[], object]) -> None:
    """Do some work, and put the manifest back to what it was before."""
    path = f"{LOG}/manifest/MANIFEST.json"
    older = store.read(path)
    work()
    store.delete(path)
    assert older is not None
    store.create(path, older)
