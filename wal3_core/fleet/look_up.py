"""Looks up marked logs: one GET of each manifest, and one of a cursor if it says what was processed. No listing.

A log that cannot be read is its own answer, and hides no other.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogError
from wal3_core.fleet.asking import ask
from wal3_core.model.cursor import BYTES_MAX, Cursor
from wal3_core.model.manifest import Manifest
from wal3_core.model.marker import life_of_log
from wal3_core.model.paths import MANIFEST, cursor_path
from wal3_core.model.rollup import Looked, stored_bytes_from
from wal3_core.runtime import map_ahead
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.documents.named_store import NamedStore
from wal3_core.storage.object_store import log_store, share_of
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.model.marker import Marker
    from wal3_core.model.rollup_options import RollUpOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


def look_up(
    store: ObjectStore, logs: Iterable[Sequence[Marker]], options: RollUpOptions, runtime: Runtime
) -> Iterator[tuple[Marker, Looked]]:
    """Look up logs, each given by its folded markers; yield each marker with what was found, several logs at a time.

    UnavailableError when the store does not answer.
    """
    look = partial(look_up_one, store, options, runtime)
    found = map_ahead(runtime, look, logs, count=options.logs_ahead, share=share_of(store))
    return chain.from_iterable(found)


def look_up_one(
    store: ObjectStore, options: RollUpOptions, runtime: Runtime, markers: Sequence[Marker]
) -> list[tuple[Marker, Looked]]:
    """Look up one log for its markers, of one life or several."""
    found = ask(partial(_look, store, options, runtime), markers)
    if isinstance(found, LogError):
        return [(marker, Looked(error=f"{type(found).__name__}: {found}")) for marker in markers]
    return list(zip(markers, found, strict=True))


def _look(store: ObjectStore, options: RollUpOptions, runtime: Runtime, markers: Sequence[Marker]) -> list[Looked]:
    inside = with_retries(log_store(store, markers[0].log), runtime, options.retry)
    manifests = ManifestStore(inside, runtime, options.retry)
    seen = manifests.look()
    if seen is None and manifests.lives():
        message = f"log {inside.url}: expected {MANIFEST} beside its fragments, found none: restore it"
        raise CorruptError(message)
    manifest = None if seen is None else seen.document
    if not isinstance(manifest, Manifest):
        # A vacancy: no life that was marked is to come there.
        return [Looked()] * len(markers)
    lives = {life_of_log(manifest.log_id)}
    processed = None
    if options.cursor is not None and any(marker.life in lives for marker in markers):
        same = ManifestStore(inside, runtime, options.retry, log_id=manifest.log_id)
        processed = _processed(same, options, runtime)
        if processed is not None and processed > manifest.next.position.offset:
            # It has moved on since. Or an older manifest was restored: then it says nothing of what was appended again.
            manifest = same.load().manifest
            processed = processed if processed <= manifest.next.position.offset else None
    return [_looked(manifest, marker, processed) for marker in markers]


def _processed(manifests: ManifestStore, options: RollUpOptions, runtime: Runtime) -> int | None:
    cursors = NamedStore(manifests, runtime, options.retry, Cursor.from_fields, bytes_max=BYTES_MAX)
    seen = None if options.cursor is None else cursors.load(cursor_path(options.cursor))
    return None if seen is None else seen.document.position.offset


def _looked(manifest: Manifest, marker: Marker, processed: int | None) -> Looked:
    first = manifest.first.position.offset
    begin = marker.start if processed is None else processed
    return Looked(
        log_id=manifest.log_id,
        first=first,
        next=manifest.next.position.offset,
        sealed=manifest.seal is not None,
        keyed=manifest.keyed,
        processed=processed,
        num_bytes=stored_bytes_from(manifest, max(first, begin)),
    )
