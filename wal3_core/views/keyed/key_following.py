"""Following keys: what is new in the log is looked at and read once, however many followers the process has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.log.read.following import Following, Source, Waiting
from wal3_core.model import parquet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.position import ReadStart
    from wal3_core.model.record import Record
    from wal3_core.views.keyed.key_reader import KeyReader
    from wal3_core.views.keyed.ranges import KeyMatch


def follow_keys(keys: KeyReader, match: KeyMatch, start: int | None, idle_s: float | None) -> Following:
    """Return a pass over the records of some keys that waits for more at the log's end."""
    follower = _Follower(keys, match, start or 0)
    waiting = Waiting(keys.runtime, keys.options, idle_s=idle_s)
    source = Source(follower.manifest, follower.records, keys.load_snapshot)
    log = keys.share.log.rstrip("/")
    return Following(source, keys.runtime, waiting, topic=keys.stores.url, log=log, start=start)


class _Follower:
    def __init__(self, keys: KeyReader, match: KeyMatch, start: int) -> None:
        self._keys = keys
        self._match = match
        self._start = start
        self._seen = keys.known

    def manifest(self) -> Manifest:
        """Return the newest manifest, or one that another follower has loaded since the last commit of this process.

        At most one GET in ``poll_s_min`` seconds for all followers, and one for each commit of this process; another
        if what was loaded is older than what this follower has seen, or than its start.
        """
        keys, shared = self._keys, self._keys.shared
        version = keys.runtime.await_topic(keys.stores.url, -1, 0.0)
        known = shared.newest
        if known is None or known[1] < version or keys.runtime.monotonic_s() - known[2] >= keys.options.poll_s_min:
            begun_s = keys.runtime.monotonic_s()
            found = shared.manifests.begin(version, keys.manifest, keys.share)()
            shared.newest = known = found, version, begun_s
        newest = known[0]
        if newest.generation < self._seen.generation or newest.next.position.offset < self._start:
            # Two loads may end in another order than they began, and another process may know a later start. Or else
            # the manifest was restored to an older version, which must not be waited out: records would be skipped.
            newest = keys.manifest()
        self._seen = newest
        return newest

    def records(self, start: ReadStart, manifest: Manifest) -> Iterator[Record]:
        """Go through a manifest's records of the keys; a follower comes to all that replaces a record."""
        limit, keys, match = manifest.next.position.offset, self._keys, self._match
        for hit, table, begin in keys.hits_with_rows(match, start, limit, manifest, exact=False):
            yield from parquet.records_of(keys.rows(hit, table, match, begin, limit))
