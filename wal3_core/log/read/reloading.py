"""Going along a log's tree while maintenance replaces its objects: what is missing is looked up in a newer manifest.

Keeps INV-10 of docs/protocol.md. Source: docs/protocol.md, "Read".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from wal3_core.errors import GarbageCollectedError, InvalidRequestError, MissingError, UnavailableError
from wal3_core.log.read.scan import begun, check_start, within
from wal3_core.runtime.loggers import READER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.log.read.walk import Walk
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.model.position import ReadStart
    from wal3_core.options import Limits

T = TypeVar("T")


class Walked(Protocol):
    """What is read: a LogReader."""

    def manifest(self) -> Manifest:
        """Load the newest manifest."""
        ...

    def walk(self, manifest: Manifest, start: ReadStart, limits: Limits) -> Walk:
        """Return a walk along one manifest's tree."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloading:
    """One way of reading a log, ``url``, of which at most ``reloads_max`` manifests are loaded for one object.

    With ``exact``, a read that began by one manifest gives that one's records or raises: a record may have been dropped
    for a newer one of its key that lies beyond that manifest's end. A follower will come to the newer one.
    """

    source: Walked
    url: str
    log_id: LogId
    reloads_max: int
    exact: bool

    def steps(
        self,
        manifest: Manifest,
        start: ReadStart,
        limits: Limits,
        steps: Callable[[Walk], Iterator[T]],
        pointer_of: Callable[[T], FragmentPointer],
    ) -> Iterator[tuple[T, ReadStart]]:
        """Take steps along the tree, each with its start; missing objects are looked up in a fresh manifest."""
        if manifest.log_id != self.log_id:
            message = f"log {self.url}: expected a manifest of log {self.log_id}, found one of {manifest.log_id}"
            raise InvalidRequestError(message)
        start, limits = begun(manifest, start), within(limits, manifest)
        began, missing, reloads = manifest, "", 0
        while reloads <= self.reloads_max:
            check_start(manifest, start)
            try:
                for step in steps(self.source.walk(manifest, start, limits)):
                    pointer = pointer_of(step)
                    if self.exact and may_lack(manifest, began):
                        check_whole(self.url, pointer)
                    yield step, start
                    start, reloads = pointer.limit.offset, 0
                    limits = limits.without(pointer.num_bytes)
            except MissingError as error:
                # Lost, if a manifest newer than the one that led here names it, too.
                if error.path == missing:
                    READER.error("log %s: lost: %s", self.url, error)
                    raise
                missing, manifest = error.path, self.source.manifest()
                reloads += 1
            else:
                return
        message = f"log {self.url}: maintenance replaced what was to be read {self.reloads_max} times over"
        raise UnavailableError(message)


def may_lack(manifest: Manifest, began: Manifest) -> bool:
    """Tell whether a newer manifest may lack records that an older one had in its range: a pass has dropped some."""
    return began.pruned != manifest.pruned and began.compaction.passes != manifest.compaction.passes


def check_whole(url: str, pointer: FragmentPointer) -> None:
    """Refuse a fragment, of a manifest that may lack records, in which there are gaps.

    Whether these were there when the read began, only the old tree knows.
    """
    if pointer.num_records < pointer.limit.offset - pointer.start.offset:
        message = (
            f"log {url}: expected the records as they were when the read began, found some compacted away"
            f" from offset {pointer.start.offset} on: read again, or read a pin"
        )
        raise GarbageCollectedError(message)
