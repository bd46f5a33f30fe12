"""wal3: a linearizable write-ahead log built on object storage alone."""

from wal3_core.errors import (
    AppendError,
    ClosedError,
    ContentionError,
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    LogExistsError,
    LogNotFoundError,
    NotDurableError,
    SealedError,
    StoreDeniedError,
    UnavailableError,
    UnknownDurabilityError,
    UnsuitableStoreError,
)
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.reader import LogReader
from wal3_core.log.scrub import ScrubReport, scrub
from wal3_core.log.writer import LogWriter
from wal3_core.model.position import AtTime, LogPosition
from wal3_core.model.record import Message, Record
from wal3_core.model.setsum import Setsum
from wal3_core.options import Limits, ReaderOptions, WriterOptions
from wal3_core.storage.cursor_store import CursorStore, Witness
from wal3_core.storage.open_store import open_store

__all__ = [
    "AppendError",
    "AtTime",
    "ClosedError",
    "ContentionError",
    "CorruptError",
    "CursorConflictError",
    "CursorStore",
    "GarbageCollectedError",
    "InvalidRequestError",
    "Limits",
    "LogError",
    "LogExistsError",
    "LogNotFoundError",
    "LogPosition",
    "LogReader",
    "LogWriter",
    "Message",
    "NotDurableError",
    "ReaderOptions",
    "Record",
    "ScrubReport",
    "SealedError",
    "Setsum",
    "StoreDeniedError",
    "UnavailableError",
    "UnknownDurabilityError",
    "UnsuitableStoreError",
    "Witness",
    "WriterOptions",
    "list_logs",
    "open_store",
    "scrub",
]
