"""Makes the log of a queue."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import ConditionNotMetError, CursorConflictError, LogExistsError
from wal3_core.log.read.reader import LogReader
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.cursor import Owner
from wal3_core.model.policy import Cleanup, Policy
from wal3_core.model.record import Message
from wal3_core.options import View, WriterOptions
from wal3_core.runtime import wall_us
from wal3_core.runtime.loggers import QUEUE
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.documents.policy_store import PolicyStore
from wal3_core.views.queue import encoding
from wal3_core.views.queue.encoding import NO_TOKEN, Meta
from wal3_core.views.queue.held_items import US_PER_MS
from wal3_core.views.queue.loading import CURSOR

if TYPE_CHECKING:
    from wal3_core.model.paths import LogId
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.queue.definition import QueueDefinition

# Small enough to read one for a few values; a tombstone is needed no longer than a load of the queue takes.
_FRAGMENT_BYTES = 2 * 2**20
_DELETE_RETENTION_S = 60 * 60
# Else the lists of what passes dropped would soon take more than the queue.
_RECEIPT_RETENTION_S = 24 * 60 * 60


def create_queue(store: ObjectStore, log: str, definition: QueueDefinition, runtime: Runtime) -> None:
    """Make a queue's log, or finish one that was begun."""
    LogWriter.open_or_initialize(store, log, runtime=runtime).close()
    manifest = LogReader.open(store, log, runtime=runtime).manifest()
    if manifest.next.position.offset > 1 or manifest.seal is not None:
        message = f"queue {store.url}/{log}: expected no log of that name, found one: open it, or choose another name"
        raise LogExistsError(message)
    log_id = manifest.log_id
    # Whatever step this ends at, the next call goes on from there.
    PolicyStore(store, log, runtime=runtime, log_id=log_id).change(_compacted)
    with contextlib.suppress(CursorConflictError):
        CursorStore(store, log, runtime=runtime, log_id=log_id).init(CURSOR, manifest.next.position, owner=Owner.QUEUE)
    created_ms = wall_us(runtime) // US_PER_MS
    # Its time begins with its first broker, whose clock the store bounds.
    meta = Meta(broker=NO_TOKEN, definition=1, last_id=0, created_ms=created_ms, now_ms=0, floors_ms={})
    records = [
        Message(definition.to_bytes(), encoding.DEFINITION_KEY),
        Message(meta.to_bytes(), encoding.META_KEY),
    ]
    with LogWriter.open(store, log, options=WriterOptions(view=View.QUEUE), runtime=runtime) as writer:
        try:
            writer.append_many(records, expect_next=1)
        except ConditionNotMetError as error:
            message = f"queue {store.url}/{log}: expected an empty log, found one that was written to meanwhile"
            raise LogExistsError(message) from error


def keep_uncollected(store: ObjectStore, log: str, runtime: Runtime, log_id: LogId) -> None:
    """Make key compaction alone remove records again, if the policy was changed: collections take pending items."""
    policies = PolicyStore(store, log, runtime=runtime, log_id=log_id)
    policy = policies.load()
    if policy.collects:
        QUEUE.warning(
            "queue %s/%s: expected the policy to compact, found cleanup %s, which removes items: it compacts again",
            store.url,
            log,
            policy.cleanup.value,
        )
        policies.change(_compacted)


def _compacted(policy: Policy) -> Policy:
    # A policy that does not collect has no values of collections.
    policy = replace(policy, retention_s=None, percent_max=None, without_cursors=False)
    if policy.compacts:
        # A collection would take items that are still pending.
        return replace(policy, cleanup=Cleanup.COMPACT)
    return replace(
        policy,
        cleanup=Cleanup.COMPACT,
        compacted_fragment_bytes=_FRAGMENT_BYTES,
        delete_retention_s=_DELETE_RETENTION_S,
        receipt_retention_s=_RECEIPT_RETENTION_S,
    )
