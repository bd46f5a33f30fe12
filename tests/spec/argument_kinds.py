"""Arguments for parameters of every declared type: a right value, and wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from wal3_core import (
    Cleanup,
    Collector,
    CursorStore,
    Delivery,
    DirtyLog,
    Excluded,
    Extension,
    FleetOptions,
    Gap,
    Included,
    KeyedOptions,
    Kick,
    Levels,
    Limits,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Record,
    RollUp,
    SubscriptionOptions,
)
from wal3_core.format.garbage import Garbage
from wal3_core.format.setsum import EMPTY
from wal3_core.log.collect.deleter import DeletionPart
from wal3_core.options import (
    CollectorOptions,
    ConsumerOptions,
    ReaderOptions,
    RetryOptions,
    SnapshotCompactorOptions,
    SnapshotOptions,
    WriterOptions,
)
from wal3_core.runtime import shared_runtime

if TYPE_CHECKING:
    import inspect

LOG = "a"
GARBAGE = f"gc/GARBAGE.{'0' * 64}.{'0' * 16}"
RIGHT = {"path": GARBAGE, "url": "memory:arguments", "change": lambda policy: policy}


@dataclass(frozen=True)
class Kind:
    """Arguments for a parameter of one declared type: a right value, and wrong ones."""

    right: object
    wrong: tuple[object, ...]


def feed_kinds() -> dict[str, Kind]:
    return {
        "FeedStart": Kind("end", (0, 1.5, True, b"1", None, object())),
        "int | AtTime | datetime": Kind(1, ("1", 1.5, True, b"1", None, object())),
        "Item": Kind(Gap(start=1, limit=2), (4711, "text", None, object(), Gap)),
        "Delivery": Kind(None, (4711, "text", None, object(), Delivery, Gap(start=1, limit=2))),
        "Pattern | Sequence[Pattern]": Kind("b", (4711, b"a", None, object(), (), [4711], ["a", "a"], Levels)),
        "object": Kind(None, (object(),)),
        "SubscriptionOptions": Kind(SubscriptionOptions(), (4711, "text", object(), None, SubscriptionOptions)),
    }


def kinds() -> dict[str, Kind]:
    store = MemoryStore(shared_runtime())
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"x")
    pointer = LogReader.open(store, LOG).scan()[0]
    witness = CursorStore(store, LOG).create("c", LogPosition(1, 0))
    garbage = Garbage(generation=1, token="0" * 16, writer="w", reason="r", first=None)
    DirtyLog.open_or_create(store, "s").close()
    rolled_up = RollUp(store, "dirty/s").read()
    nothing: tuple[object, ...] = (4711, "text", object())
    found = feed_kinds() | {
        "ObjectStore": Kind(store, (*nothing, None, MemoryStore)),
        "str": Kind("b", (4711, b"a", 1.5, None, object())),
        "int": Kind(3, ("3", 1.5, True, None, object())),
        "int | LogAt": Kind(1, ("3", 1.5, True, object())),
        "float": Kind(3, ("3", True, None, object())),
        "bool": Kind(right=False, wrong=(1, "no", None)),
        "bytes": Kind(b"", ("text", 4711, None)),
        "OffsetBound": Kind(1, ("3", 1.5, True, b"1", object(), -1, Included(-1), Excluded(b"1"))),
        "KeyBound": Kind(b"", ("text", 4711, Included(4711))),
        "B": Kind(1, ("3", 1.5, True, None, object())),
        "bytes | None": Kind(b"", ("text", 4711, 1.5)),
        "ReadStart": Kind(1, ("1", 1.5, True, b"1", object())),
        "ConsumerStart": Kind("end", ("middle", 1.5, True, b"1", None, object())),
        "LogPosition | Record": Kind(LogPosition(1, 0), (*nothing, None, LogPosition, (1, 0))),
        "str | Sequence[str]": Kind(LOG, (4711, b"a", None, object(), (), [4711], [LOG, LOG], [LOG, None])),
        "ConsumedRecord": Kind(None, (*nothing, None, Record(1, 0, None, b"x"))),
        "Runtime": Kind(shared_runtime(), nothing),
        "SnapshotPointer": Kind(None, (*nothing, None)),
        "boto3.session.Session": Kind(None, nothing),
        "Cursor": Kind(witness.cursor, (*nothing, None)),
        "Cleanup": Kind(Cleanup.BOTH, (4711, "text", None, object())),
        "LogId": Kind("0" * 32, (4711, None)),
        "Etag": Kind("e", (4711, None)),
        "Operation": Kind(Kick(), (*nothing, None, Kick)),
        "Callable": Kind(lambda *_: None, ("text", 4711, None)),
        "Iterable": Kind((), (4711, None, "text", object())),
        "Sequence": Kind((), (4711, None, "text")),
        "Rows": Kind(pa.table({"body": [b"x"]}), (*nothing, None, pa.Table, {"body": [b"x"]})),
    }
    for value in (
        *(LogPosition(1, 0), LogAt(store, LOG), Limits(), pointer, witness, garbage, DeletionPart()),
        *(RetryOptions(), SnapshotOptions(), WriterOptions(), ReaderOptions(), CollectorOptions()),
        *(ConsumerOptions(), FleetOptions(), SnapshotCompactorOptions(), Collector(store, LOG).plan(), EMPTY),
        *(KeyedOptions(), SubscriptionOptions(), Extension()),
        *(LogReader.open(store, LOG).manifest(), rolled_up, rolled_up.marker_range),
    ):
        found[type(value).__name__] = Kind(value, (*nothing, None, type(value)))
    return found


def kind_of(parameter: inspect.Parameter, known: dict[str, Kind]) -> Kind:
    declared = str(parameter.annotation)
    if declared in known:
        kind = known[declared]
    elif declared.endswith(" | None"):
        kind = kind_of(parameter.replace(annotation=declared.removesuffix(" | None")), known)
        kind = Kind(None, tuple(value for value in kind.wrong if value is not None))
    else:
        kind = known.get(declared.split("[", maxsplit=1)[0], Kind(None, (4711, "text", object())))
    # Neither a runtime nor options are ever stored: they are not checked.
    unchecked = declared.removesuffix(" | None").endswith(("Runtime", "Options"))
    return Kind(RIGHT.get(parameter.name, kind.right), () if unchecked else kind.wrong)
