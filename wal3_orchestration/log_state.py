"""The state of a log, read from its manifest and cursors: a few requests, whatever the log's size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dagster import MetadataValue, TimestampMetadataValue

from wal3_core import CursorStore, LogError, LogNotFoundError, LogReplacedError, StoreDeniedError
from wal3_core.fleet.outcomes import try_log
from wal3_core.model.paths import check_log_name
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.storage.documents.manifest_store import ManifestStore, lost_manifest
from wal3_core.storage.object_store import log_store
from wal3_core.storage.retrying import with_retries
from wal3_orchestration.at_once import at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wal3_core.model.cursor import Cursor
    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log's state at one look."""

    log: str
    manifest: Manifest
    cursors: Mapping[str, Cursor]

    @property
    def data_version(self) -> str:
        """Identify what the log held: no two versions of a manifest share it."""
        return f"{self.manifest.log_id}-{self.manifest.generation}-{self.manifest.setsum.hexdigest()}"

    @property
    def fingerprint(self) -> str:
        """Identify the state, including the cursors."""
        moved = ",".join(f"{name}@{cursor.generation}" for name, cursor in sorted(self.cursors.items()))
        return f"{self.data_version} {moved}"

    def numbers(self) -> dict[str, int]:
        """Return the numbers that Dagster plots.

        ``fragments`` counts the fragment numbers that the log holds, including those in snapshots;
        ``lag/<cursor> (records)`` counts the records at and after a cursor, unless it pins nothing.
        """
        manifest = self.manifest
        limit = manifest.next.position.offset
        pinning = {name: cursor.position.offset for name, cursor in sorted(self.cursors.items()) if cursor.pins}
        return {
            "records": manifest.num_records,
            "bytes": manifest.num_bytes,
            "fragments": manifest.next.seq_no - manifest.first.seq_no,
            "snapshots": len(manifest.snapshots),
            "generation": manifest.generation,
            "next_offset": limit,
            **{f"lag/{name} (records)": limit - offset for name, offset in pinning.items()},
        }

    def metadata(self) -> dict[str, int | str | bool | TimestampMetadataValue]:
        """Return the numbers, the time of the last append, the setsum, and whether the log is sealed."""
        following = self.manifest.next.position
        appended = MetadataValue.timestamp(following.timestamp_us / US_PER_S)
        return {
            **self.numbers(),
            **({"last_append": appended} if following.offset > 1 else {}),
            "setsum": self.manifest.setsum.hexdigest(),
            "sealed": self.manifest.seal is not None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLog:
    """A log with a damaged manifest or cursor, or one that the store denies access to."""

    log: str
    message: str
    denied: bool = False

    @property
    def fingerprint(self) -> str:
        """Identify the damage. All denials count as one: a store may put a number into each."""
        return "denied" if self.denied else self.message


def look(store: ObjectStore, log: str) -> LogState | UnreadableLog | None:
    """Read a log's present state; None when there is no log. UnavailableError when the store does not answer."""
    found = try_log(partial(_look, store), log)
    if not isinstance(found, LogError):
        return found
    return UnreadableLog(log=log, message=str(found), denied=isinstance(found, StoreDeniedError))


def _look(store: ObjectStore, log: str) -> LogState | UnreadableLog | None:
    try:
        manifest = _manifest(store, log)
        witnesses = CursorStore(store, log, log_id=manifest.log_id).list()
        cursors = {name: witness.cursor for name, witness in witnesses.items()}
    except LogReplacedError:
        return _look(store, log)
    except LogNotFoundError:
        lost = lost_manifest(log_store(store, log), shared_runtime())
        return None if lost is None else UnreadableLog(log=log, message=str(lost))
    return LogState(log=log, manifest=manifest, cursors=cursors)


def _manifest(store: ObjectStore, log: str) -> Manifest:
    """Read a log's manifest by one request."""
    runtime = shared_runtime()
    return ManifestStore(with_retries(log_store(store, check_log_name(log)), runtime), runtime).load().manifest


def read_states(store: ObjectStore, logs: Iterable[str]) -> Iterator[LogState | UnreadableLog]:
    """Read the states of many logs, several at a time, in order; logs that are gone are left out.

    Keep of each state what is needed: manifests of thousands of logs take hundreds of MB.
    """
    yield from (state for state in at_once(partial(look, store), logs) if state is not None)


def read_manifests(store: ObjectStore, logs: Iterable[str]) -> Iterator[tuple[str, Manifest]]:
    """Read the manifests of many logs by one request each; those that cannot be read, or are gone, are left out.

    Keep of each manifest what is needed. UnavailableError when the store does not answer.
    """
    for log, found in at_once(lambda log: (log, try_log(partial(_manifest, store), log)), logs):
        if not isinstance(found, LogError):
            yield log, found
