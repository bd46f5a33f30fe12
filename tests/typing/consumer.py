"""A small project that uses wal3, for type checkers: it is not run."""

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

import wal3_core
from wal3_core import (
    CollectionReport,
    CursorStore,
    InvalidRequestError,
    LogPosition,
    LogReader,
    LogWriter,
    ObjectStore,
    Record,
    UnknownDurabilityError,
    Witness,
    WriterOptions,
    collect,
    list_logs,
    open_store,
)


def produce(store: ObjectStore, bodies: list[bytes]) -> list[LogPosition]:
    futures: list[Future[LogPosition]] = []
    with LogWriter.open_or_create(store, "orders", options=WriterOptions(uploads_max=2)) as writer:
        for body in bodies:
            futures.append(writer.submit(body, key=b"key", timeout_s=5))
        try:
            assert_type(writer.append(b"last"), LogPosition)
        except UnknownDurabilityError as error:
            print(error)
        assert_type(writer.stats().appends, int)
    return [future.result(timeout=600) for future in futures]


def consume(store: ObjectStore) -> int:
    cursors = CursorStore(store, "orders")
    found = cursors.load("billing")
    assert_type(found, Witness | None)
    reader = LogReader.open(store, "orders")
    count = 0
    for record in reader.records() if found is None else reader.records(found.cursor.position):
        assert_type(record, Record)
        assert_type(record.body, bytes | None)
        assert_type(record.offset, int)
        count += 1
    return count


def main() -> None:
    store = open_store("memory:typed")
    assert_type(store, ObjectStore)
    try:
        print(produce(store, [b"a", b"b"]), consume(store), list(list_logs(store)))
    except InvalidRequestError:
        print(wal3_core.__version__)
    assert_type(collect(store, "orders"), CollectionReport)
    assert_type(wal3_core.__version__, str)


main()
