"""wal3: a linearizable write-ahead log built on object storage alone."""

from wal3_core.errors import (
    AppendError,
    AppendReplacedError,
    ClosedError,
    CollectionRefusedError,
    ConditionNotMetError,
    ContentionError,
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    HaltedError,
    InvalidRequestError,
    LogError,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    NotDurableError,
    OutdatedPlanError,
    OverloadedError,
    SealedError,
    StoreDeniedError,
    UnavailableError,
    UnknownDurabilityError,
    UnsuitableStoreError,
)
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.collect.collection import CollectionReport, collect
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.copier import CopyReport, LogAt, copy
from wal3_core.log.maintain.destroyer import DestroyPlan, destroy, plan_destroy
from wal3_core.log.maintain.sealer import initialize_successor, migrate, seal
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.read.pinned import open_pinned, pinned_records
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import ScrubReport, scrub
from wal3_core.log.read.succession import follow_across, records_across
from wal3_core.log.write.bootstrap import BootstrapReport, Origin, bootstrap
from wal3_core.log.write.halt import ResumeReport
from wal3_core.log.write.stats import WriterStats
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.manifest_parts import Seal
from wal3_core.model.pin import Pin
from wal3_core.model.policy import Policy
from wal3_core.model.position import AtTime, LogPosition
from wal3_core.model.record import Message, Record
from wal3_core.model.setsum import Setsum
from wal3_core.options import CollectorOptions, Limits, ReaderOptions, SnapshotCompactorOptions, WriterOptions
from wal3_core.runtime import enable_metrics
from wal3_core.storage.documents.cursor_store import CursorStore, Witness
from wal3_core.storage.documents.pin_store import PinStore
from wal3_core.storage.documents.policy_store import PolicyStore
from wal3_core.storage.open_store import open_store

__all__ = [
    "AppendError",
    "AppendReplacedError",
    "AtTime",
    "BootstrapReport",
    "ClosedError",
    "CollectionRefusedError",
    "CollectionReport",
    "Collector",
    "CollectorOptions",
    "ConditionNotMetError",
    "ContentionError",
    "CopyReport",
    "CorruptError",
    "CursorConflictError",
    "CursorStore",
    "Deleter",
    "DestroyPlan",
    "GarbageCollectedError",
    "HaltedError",
    "InvalidRequestError",
    "Limits",
    "LogAt",
    "LogError",
    "LogExistsError",
    "LogNotFoundError",
    "LogPosition",
    "LogReader",
    "LogReplacedError",
    "LogWriter",
    "Message",
    "NotDurableError",
    "Origin",
    "OutdatedPlanError",
    "OverloadedError",
    "Pin",
    "PinStore",
    "Policy",
    "PolicyStore",
    "ReaderOptions",
    "Record",
    "ResumeReport",
    "ScrubReport",
    "Seal",
    "SealedError",
    "Setsum",
    "SnapshotCompactor",
    "SnapshotCompactorOptions",
    "StoreDeniedError",
    "UnavailableError",
    "UnknownDurabilityError",
    "UnsuitableStoreError",
    "Witness",
    "WriterOptions",
    "WriterStats",
    "bootstrap",
    "collect",
    "copy",
    "destroy",
    "enable_metrics",
    "follow_across",
    "initialize_successor",
    "list_logs",
    "migrate",
    "open_pinned",
    "open_store",
    "pinned_records",
    "plan_destroy",
    "records_across",
    "scrub",
    "seal",
]
