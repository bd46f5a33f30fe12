"""wal3: a linearizable write-ahead log built on object storage alone.

A name is imported when it is first used, so that ``import wal3_core`` costs nothing.
"""

from importlib import import_module as _import_module

try:
    # Where it is missing, forks and signals are, too.
    _import_module("fcntl")
except ModuleNotFoundError:
    _why = "wal3: expected Linux or macOS, found a system without fcntl: on Windows, run it in WSL (wsl --install)"
    raise ImportError(_why) from None

# True for type checkers. The import of ``typing`` takes longer than all else here.
TYPE_CHECKING = False
# ``_MODULES`` below says the same at run time.
if TYPE_CHECKING:
    from wal3_core.compaction.compactor import KeyCompactor as KeyCompactor
    from wal3_core.compaction.engine import DropReason as DropReason
    from wal3_core.compaction.engine import Engine as Engine
    from wal3_core.compaction.reports import KeyCompactionPlan as KeyCompactionPlan
    from wal3_core.compaction.reports import KeyCompactionReport as KeyCompactionReport
    from wal3_core.compaction.reports import KeyInstallReport as KeyInstallReport
    from wal3_core.compaction.verifying import Erased as Erased
    from wal3_core.compaction.verifying import ListGone as ListGone
    from wal3_core.compaction.verifying import Receipt as Receipt
    from wal3_core.compaction.verifying import Verification as Verification
    from wal3_core.errors import AppendError as AppendError
    from wal3_core.errors import AppendReplacedError as AppendReplacedError
    from wal3_core.errors import BackPressureError as BackPressureError
    from wal3_core.errors import ClosedError as ClosedError
    from wal3_core.errors import CollectionRefusedError as CollectionRefusedError
    from wal3_core.errors import ConditionNotMetError as ConditionNotMetError
    from wal3_core.errors import ContentionError as ContentionError
    from wal3_core.errors import CorruptError as CorruptError
    from wal3_core.errors import CursorConflictError as CursorConflictError
    from wal3_core.errors import FeedMovedError as FeedMovedError
    from wal3_core.errors import FencedError as FencedError
    from wal3_core.errors import GarbageCollectedError as GarbageCollectedError
    from wal3_core.errors import HaltedError as HaltedError
    from wal3_core.errors import InvalidRequestError as InvalidRequestError
    from wal3_core.errors import KeyCompactionRefusedError as KeyCompactionRefusedError
    from wal3_core.errors import KeyRequiredError as KeyRequiredError
    from wal3_core.errors import LogError as LogError
    from wal3_core.errors import LogExistsError as LogExistsError
    from wal3_core.errors import LogNotFoundError as LogNotFoundError
    from wal3_core.errors import LogReplacedError as LogReplacedError
    from wal3_core.errors import NotDurableError as NotDurableError
    from wal3_core.errors import OutdatedPlanError as OutdatedPlanError
    from wal3_core.errors import OverloadedError as OverloadedError
    from wal3_core.errors import QueueFullError as QueueFullError
    from wal3_core.errors import SealedError as SealedError
    from wal3_core.errors import StaleTokenError as StaleTokenError
    from wal3_core.errors import StoreDeniedError as StoreDeniedError
    from wal3_core.errors import TailMismatchError as TailMismatchError
    from wal3_core.errors import UnavailableError as UnavailableError
    from wal3_core.errors import UnknownDurabilityError as UnknownDurabilityError
    from wal3_core.errors import UnknownItemError as UnknownItemError
    from wal3_core.errors import UnmarkedError as UnmarkedError
    from wal3_core.errors import UnsuitableStoreError as UnsuitableStoreError
    from wal3_core.errors import ViewRequiredError as ViewRequiredError
    from wal3_core.fleet.dirty.back_pressure import Pressure as Pressure
    from wal3_core.fleet.dirty.back_pressure import over_limit as over_limit
    from wal3_core.fleet.dirty.dirty_log import DirtyLog as DirtyLog
    from wal3_core.fleet.dirty.dirty_log import assigned as assigned
    from wal3_core.fleet.dirty.dirty_log import dirty_logs as dirty_logs
    from wal3_core.fleet.dirty.rollup import FinishedRollUp as FinishedRollUp
    from wal3_core.fleet.dirty.rollup import RollUp as RollUp
    from wal3_core.fleet.dirty.rollup import RollUpEnd as RollUpEnd
    from wal3_core.fleet.dirty.rollup_plan import Decision as Decision
    from wal3_core.fleet.dirty.rollup_plan import MarkedLog as MarkedLog
    from wal3_core.fleet.dirty.rollup_plan import MarkerRange as MarkerRange
    from wal3_core.fleet.dirty.rollup_plan import RollUpOptions as RollUpOptions
    from wal3_core.fleet.dirty.rollup_plan import RollUpPlan as RollUpPlan
    from wal3_core.fleet.dirty.rollup_plan import RollUpTime as RollUpTime
    from wal3_core.fleet.discovery import list_logs as list_logs
    from wal3_core.fleet.fleet import Fleet as Fleet
    from wal3_core.fleet.fleet import FleetStats as FleetStats
    from wal3_core.fleet.fleet import HeldWriter as HeldWriter
    from wal3_core.format.cursor import Cursor as Cursor
    from wal3_core.format.cursor import Extension as Extension
    from wal3_core.format.cursor import Owner as Owner
    from wal3_core.format.fragment import FragmentPointer as FragmentPointer
    from wal3_core.format.garbage import Garbage as Garbage
    from wal3_core.format.manifest import Manifest as Manifest
    from wal3_core.format.manifest import Seal as Seal
    from wal3_core.format.marker import Marker as Marker
    from wal3_core.format.parquet.decoding import Fragment as Fragment
    from wal3_core.format.pass_record import PassRecord as PassRecord
    from wal3_core.format.pass_record import Proof as Proof
    from wal3_core.format.pass_record import Replacement as Replacement
    from wal3_core.format.pin import Pin as Pin
    from wal3_core.format.policy import Cleanup as Cleanup
    from wal3_core.format.policy import CompactionLimits as CompactionLimits
    from wal3_core.format.policy import Policy as Policy
    from wal3_core.format.position import AtTime as AtTime
    from wal3_core.format.position import LogPosition as LogPosition
    from wal3_core.format.record import Message as Message
    from wal3_core.format.record import Record as Record
    from wal3_core.format.setsum import Setsum as Setsum
    from wal3_core.format.snapshot import Snapshot as Snapshot
    from wal3_core.format.snapshot import SnapshotPointer as SnapshotPointer
    from wal3_core.log.collect.collector import CollectionReport as CollectionReport
    from wal3_core.log.collect.collector import Collector as Collector
    from wal3_core.log.collect.collector import NotPruned as NotPruned
    from wal3_core.log.collect.collector import Plan as Plan
    from wal3_core.log.collect.collector import PrunedGarbage as PrunedGarbage
    from wal3_core.log.collect.collector import collect as collect
    from wal3_core.log.collect.deleter import Deleter as Deleter
    from wal3_core.log.collect.deleter import DeletionPart as DeletionPart
    from wal3_core.log.collect.deleter import DeletionReport as DeletionReport
    from wal3_core.log.collect.deleter import DueDocument as DueDocument
    from wal3_core.log.collect.deleter import Retainer as Retainer
    from wal3_core.log.maintain.bootstrap import BootstrapReport as BootstrapReport
    from wal3_core.log.maintain.bootstrap import Origin as Origin
    from wal3_core.log.maintain.bootstrap import bootstrap as bootstrap
    from wal3_core.log.maintain.copy.copier import CopyReport as CopyReport
    from wal3_core.log.maintain.copy.copier import LogAt as LogAt
    from wal3_core.log.maintain.copy.copier import copy as copy
    from wal3_core.log.maintain.copy.update import CopyUpdateReport as CopyUpdateReport
    from wal3_core.log.maintain.copy.update import update_copy as update_copy
    from wal3_core.log.maintain.destroyer import DestroyPart as DestroyPart
    from wal3_core.log.maintain.destroyer import DestroyPlan as DestroyPlan
    from wal3_core.log.maintain.destroyer import destroy as destroy
    from wal3_core.log.maintain.destroyer import plan_destroy as plan_destroy
    from wal3_core.log.maintain.destroyer import undo_destroy as undo_destroy
    from wal3_core.log.maintain.repair import RepairReport as RepairReport
    from wal3_core.log.maintain.repair import repair_log as repair_log
    from wal3_core.log.maintain.sealer import create_successor as create_successor
    from wal3_core.log.maintain.sealer import migrate as migrate
    from wal3_core.log.maintain.sealer import seal as seal
    from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactionReport as SnapshotCompactionReport
    from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor as SnapshotCompactor
    from wal3_core.log.maintain.snapshot_compactor import SnapshotPlan as SnapshotPlan
    from wal3_core.log.read.consumer import ConsumedRecord as ConsumedRecord
    from wal3_core.log.read.consumer import Consumer as Consumer
    from wal3_core.log.read.consumer import Lag as Lag
    from wal3_core.log.read.following import Following as Following
    from wal3_core.log.read.following import Waiting as Waiting
    from wal3_core.log.read.reader import LogReader as LogReader
    from wal3_core.log.read.reader import open_pinned as open_pinned
    from wal3_core.log.read.reader import pinned_records as pinned_records
    from wal3_core.log.read.scan import StoredFile as StoredFile
    from wal3_core.log.read.scan import Walk as Walk
    from wal3_core.log.read.scrub import Problem as Problem
    from wal3_core.log.read.scrub import ScrubReport as ScrubReport
    from wal3_core.log.read.scrub import scrub as scrub
    from wal3_core.log.read.succession import follow_across as follow_across
    from wal3_core.log.read.succession import records_across as records_across
    from wal3_core.log.tree.shape import Shape as Shape
    from wal3_core.log.write.appends import Marks as Marks
    from wal3_core.log.write.commit_results import ResumeReport as ResumeReport
    from wal3_core.log.write.stats import WriterStats as WriterStats
    from wal3_core.log.write.writer import LogWriter as LogWriter
    from wal3_core.options import CollectorOptions as CollectorOptions
    from wal3_core.options import ConsumerOptions as ConsumerOptions
    from wal3_core.options import FleetOptions as FleetOptions
    from wal3_core.options import KeyCompactorOptions as KeyCompactorOptions
    from wal3_core.options import Limits as Limits
    from wal3_core.options import ReaderOptions as ReaderOptions
    from wal3_core.options import RetryOptions as RetryOptions
    from wal3_core.options import SnapshotCompactorOptions as SnapshotCompactorOptions
    from wal3_core.options import SnapshotOptions as SnapshotOptions
    from wal3_core.options import View as View
    from wal3_core.options import WriterOptions as WriterOptions
    from wal3_core.runtime.open_telemetry import enable_metrics as enable_metrics
    from wal3_core.runtime.port import Runtime as Runtime
    from wal3_core.runtime.threads import ThreadRuntime as ThreadRuntime
    from wal3_core.store.backends.memory import MemoryStore as MemoryStore
    from wal3_core.store.documents.cursor_store import CursorStore as CursorStore
    from wal3_core.store.documents.cursor_store import Witness as Witness
    from wal3_core.store.documents.pin_store import PinStore as PinStore
    from wal3_core.store.documents.policy_store import PolicyStore as PolicyStore
    from wal3_core.store.object_store import ObjectMeta as ObjectMeta
    from wal3_core.store.object_store import ObjectStore as ObjectStore
    from wal3_core.store.open_store import open_store as open_store
    from wal3_core.views.feed.feed_reader import FeedReader as FeedReader
    from wal3_core.views.feed.feed_subscription import FeedSubscription as FeedSubscription
    from wal3_core.views.feed.feed_writer import FeedWriter as FeedWriter
    from wal3_core.views.feed.messages import Delivery as Delivery
    from wal3_core.views.feed.messages import FeedMessage as FeedMessage
    from wal3_core.views.feed.messages import Gap as Gap
    from wal3_core.views.feed.messages import Stray as Stray
    from wal3_core.views.feed.subscribed import SubscriptionInfo as SubscriptionInfo
    from wal3_core.views.feed.subscribed import SubscriptionOptions as SubscriptionOptions
    from wal3_core.views.feed.topics import Levels as Levels
    from wal3_core.views.keyed.key_count import KeyCount as KeyCount
    from wal3_core.views.keyed.keyed_consumer import KeyedConsumer as KeyedConsumer
    from wal3_core.views.keyed.keyed_log import KeyedLog as KeyedLog
    from wal3_core.views.keyed.keyed_log import KeyedScan as KeyedScan
    from wal3_core.views.keyed.reads import Excluded as Excluded
    from wal3_core.views.keyed.reads import Included as Included
    from wal3_core.views.keyed.reads import KeyedOptions as KeyedOptions
    from wal3_core.views.queue.delay_queue import DelayQueue as DelayQueue
    from wal3_core.views.queue.loading import is_queue as is_queue
    from wal3_core.views.queue.loading import read_queue_dead as read_queue_dead
    from wal3_core.views.queue.loading import read_queue_definition as read_queue_definition
    from wal3_core.views.queue.loading import read_queue_head as read_queue_head
    from wal3_core.views.queue.loading import read_queue_item as read_queue_item
    from wal3_core.views.queue.loading import read_queue_stats as read_queue_stats
    from wal3_core.views.queue.operations import Bury as Bury
    from wal3_core.views.queue.operations import Define as Define
    from wal3_core.views.queue.operations import Dequeue as Dequeue
    from wal3_core.views.queue.operations import Enqueue as Enqueue
    from wal3_core.views.queue.operations import Enqueued as Enqueued
    from wal3_core.views.queue.operations import Extend as Extend
    from wal3_core.views.queue.operations import GiveBack as GiveBack
    from wal3_core.views.queue.operations import ItemState as ItemState
    from wal3_core.views.queue.operations import ItemStats as ItemStats
    from wal3_core.views.queue.operations import Kick as Kick
    from wal3_core.views.queue.operations import Leased as Leased
    from wal3_core.views.queue.operations import NewItem as NewItem
    from wal3_core.views.queue.operations import Peeked as Peeked
    from wal3_core.views.queue.operations import Purge as Purge
    from wal3_core.views.queue.operations import QueueDefinition as QueueDefinition
    from wal3_core.views.queue.operations import QueueOptions as QueueOptions
    from wal3_core.views.queue.operations import QueueRepair as QueueRepair
    from wal3_core.views.queue.operations import QueueStats as QueueStats
    from wal3_core.views.queue.operations import Reclaim as Reclaim
    from wal3_core.views.queue.operations import Release as Release
    from wal3_core.views.queue.operations import Requeue as Requeue
    from wal3_core.views.queue.operations import Retime as Retime

# The public names of each module.
_MODULES = {
    "wal3_core.compaction.compactor": "KeyCompactor",
    "wal3_core.compaction.engine": "DropReason Engine",
    "wal3_core.compaction.reports": "KeyCompactionPlan KeyCompactionReport KeyInstallReport",
    "wal3_core.compaction.verifying": "Erased ListGone Receipt Verification",
    "wal3_core.errors": (
        "AppendError AppendReplacedError BackPressureError ClosedError CollectionRefusedError ConditionNotMetError"
        " ContentionError CorruptError CursorConflictError FeedMovedError FencedError GarbageCollectedError"
        " HaltedError InvalidRequestError KeyCompactionRefusedError KeyRequiredError LogError LogExistsError"
        " LogNotFoundError LogReplacedError NotDurableError OutdatedPlanError OverloadedError QueueFullError"
        " SealedError StaleTokenError StoreDeniedError TailMismatchError UnavailableError UnknownDurabilityError"
        " UnknownItemError UnmarkedError UnsuitableStoreError ViewRequiredError"
    ),
    "wal3_core.fleet.dirty.back_pressure": "Pressure over_limit",
    "wal3_core.fleet.dirty.dirty_log": "DirtyLog assigned dirty_logs",
    "wal3_core.fleet.dirty.rollup": "FinishedRollUp RollUp RollUpEnd",
    "wal3_core.fleet.dirty.rollup_plan": "Decision MarkedLog MarkerRange RollUpOptions RollUpPlan RollUpTime",
    "wal3_core.fleet.discovery": "list_logs",
    "wal3_core.fleet.fleet": "Fleet FleetStats HeldWriter",
    "wal3_core.format.cursor": "Cursor Extension Owner",
    "wal3_core.format.fragment": "FragmentPointer",
    "wal3_core.format.garbage": "Garbage",
    "wal3_core.format.manifest": "Manifest Seal",
    "wal3_core.format.marker": "Marker",
    "wal3_core.format.parquet.decoding": "Fragment",
    "wal3_core.format.pass_record": "PassRecord Proof Replacement",
    "wal3_core.format.pin": "Pin",
    "wal3_core.format.policy": "Cleanup CompactionLimits Policy",
    "wal3_core.format.position": "AtTime LogPosition",
    "wal3_core.format.record": "Message Record",
    "wal3_core.format.setsum": "Setsum",
    "wal3_core.format.snapshot": "Snapshot SnapshotPointer",
    "wal3_core.log.collect.collector": "CollectionReport Collector PrunedGarbage NotPruned Plan collect",
    "wal3_core.log.collect.deleter": "Deleter DeletionPart DeletionReport DueDocument Retainer",
    "wal3_core.log.maintain.bootstrap": "BootstrapReport Origin bootstrap",
    "wal3_core.log.maintain.copy.copier": "CopyReport LogAt copy",
    "wal3_core.log.maintain.copy.update": "CopyUpdateReport update_copy",
    "wal3_core.log.maintain.destroyer": "DestroyPart DestroyPlan destroy plan_destroy undo_destroy",
    "wal3_core.log.maintain.repair": "RepairReport repair_log",
    "wal3_core.log.maintain.sealer": "create_successor migrate seal",
    "wal3_core.log.maintain.snapshot_compactor": "SnapshotCompactionReport SnapshotCompactor SnapshotPlan",
    "wal3_core.log.read.consumer": "ConsumedRecord Consumer Lag",
    "wal3_core.log.read.following": "Following Waiting",
    "wal3_core.log.read.reader": "LogReader open_pinned pinned_records",
    "wal3_core.log.read.scrub": "Problem ScrubReport scrub",
    "wal3_core.log.read.succession": "follow_across records_across",
    "wal3_core.log.read.scan": "StoredFile Walk",
    "wal3_core.log.tree.shape": "Shape",
    "wal3_core.log.write.commit_results": "ResumeReport",
    "wal3_core.log.write.appends": "Marks",
    "wal3_core.log.write.stats": "WriterStats",
    "wal3_core.log.write.writer": "LogWriter",
    "wal3_core.options": (
        "CollectorOptions ConsumerOptions FleetOptions KeyCompactorOptions Limits ReaderOptions RetryOptions"
        " SnapshotCompactorOptions SnapshotOptions View WriterOptions"
    ),
    "wal3_core.runtime.open_telemetry": "enable_metrics",
    "wal3_core.runtime.port": "Runtime",
    "wal3_core.runtime.threads": "ThreadRuntime",
    "wal3_core.store.backends.memory": "MemoryStore",
    "wal3_core.store.documents.cursor_store": "CursorStore Witness",
    "wal3_core.store.documents.pin_store": "PinStore",
    "wal3_core.store.documents.policy_store": "PolicyStore",
    "wal3_core.store.object_store": "ObjectMeta ObjectStore",
    "wal3_core.store.open_store": "open_store",
    "wal3_core.views.feed.feed_reader": "FeedReader",
    "wal3_core.views.feed.feed_subscription": "FeedSubscription",
    "wal3_core.views.feed.feed_writer": "FeedWriter",
    "wal3_core.views.feed.messages": "Delivery FeedMessage Gap Stray",
    "wal3_core.views.feed.subscribed": "SubscriptionInfo SubscriptionOptions",
    "wal3_core.views.feed.topics": "Levels",
    "wal3_core.views.keyed.key_count": "KeyCount",
    "wal3_core.views.keyed.keyed_consumer": "KeyedConsumer",
    "wal3_core.views.keyed.keyed_log": "KeyedLog KeyedScan",
    "wal3_core.views.keyed.reads": "Excluded Included KeyedOptions",
    "wal3_core.views.queue.delay_queue": "DelayQueue",
    "wal3_core.views.queue.loading": (
        "is_queue read_queue_dead read_queue_definition read_queue_head read_queue_item read_queue_stats"
    ),
    "wal3_core.views.queue.operations": (
        "Bury Define Dequeue Enqueue Enqueued Extend GiveBack ItemState ItemStats Kick Leased NewItem Peeked Purge"
        " QueueDefinition QueueOptions QueueRepair QueueStats Reclaim Release Requeue Retime"
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__version__: str
__all__ = tuple(sorted(_HOMES))


# A type checker that saw it would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            # Its import takes longer than the rest of this module.
            return _import_module("importlib.metadata").version("wal3")
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        # The next use finds it without this function.
        value = globals()[name] = getattr(_import_module(_HOMES[name]), name)
        return value


del TYPE_CHECKING


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})
