"""Reading what a pin keeps: the log as it was when the pin was made, whatever was collected since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, optional
from wal3_core.errors import InvalidRequestError
from wal3_core.log.read.reader import LogReader
from wal3_core.model.paths import check_log_name, check_pin_name
from wal3_core.model.position import read_start
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.documents.pin_store import PinStore
from wal3_core.storage.object_store import a_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.pin import Pin
    from wal3_core.model.position import ReadStart
    from wal3_core.model.record import Record
    from wal3_core.storage.object_store import ObjectStore


@checked(
    store=a_store,
    log=check_log_name,
    name=check_pin_name,
    start=read_start,
    limits=instance_of(Limits),
    runtime=optional(a_runtime),
)
def pinned_records(
    store: ObjectStore,
    log: str,
    name: str,
    start: ReadStart = None,
    limits: Limits = UNLIMITED,
    *,
    runtime: Runtime | None = None,
) -> Iterator[Record]:
    """Go through the records that a pin keeps; InvalidRequestError when there is no finished pin of that name."""
    yield from open_pinned(store, log, name, runtime=runtime).records(start, limits)


@checked(
    store=a_store,
    log=check_log_name,
    name=check_pin_name,
    options=optional(instance_of(ReaderOptions)),
    runtime=optional(a_runtime),
)
def open_pinned(
    store: ObjectStore,
    log: str,
    name: str,
    *,
    options: ReaderOptions | None = None,
    runtime: Runtime | None = None,
) -> LogReader:
    """Open what a pin keeps for reading; InvalidRequestError when there is no finished pin of that name."""
    runtime, options = runtime or shared_runtime(), options or ReaderOptions()
    pin = PinStore(store, log, runtime=runtime).load(name)
    if pin is None:
        message = f"log {log}: expected a pin {name}, found none"
        raise InvalidRequestError(message)
    if not pin.complete:
        message = f"log {log}: expected pin {name} to be finished, found it unfinished: pin it again"
        raise InvalidRequestError(message)
    reader = _PinnedReader(store, log, options=options, runtime=runtime, log_id=pin.log_id)
    reader.pin = pin
    return reader


class _PinnedReader(LogReader):
    """Reads what a pin holds as if nothing came after it: a missing object is lost, since the pin keeps it."""

    pin: Pin

    def manifest(self) -> Manifest:
        return self.pin.manifest
