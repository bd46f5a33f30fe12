"""The last record of each key: read backwards from the log's end, and remembered, so that only what is new is read."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import MissingError, UnavailableError
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.history import History
from wal3_core.views.keyed.key_reader import load_matching
from wal3_core.views.keyed.ranges import KeyMatch
from wal3_core.views.keyed.shared_reads import each_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer
    from wal3_core.views.keyed.key_reader import KeyReader

_KNOWN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """A key's last record, 0 for none, in a log that had this history: a later pass may have dropped the record."""

    tail: int
    history: History


class KeyTails:
    """Finds the offset of a key's last record. Safe to share between threads."""

    def __init__(self, keys: KeyReader) -> None:
        self._keys = keys
        self._lock = keys.runtime.lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    @property
    def url(self) -> str:
        """The log's URL."""
        return self._keys.stores.url

    def find(self, key: bytes) -> tuple[int, int]:
        """Return the offset of a key's last record, 0 for none, and the end of the log that was looked at."""
        missing = ""
        for _ in range(self._keys.options.reloads_max + 1):
            manifest = self._keys.manifest()
            try:
                return self._find(key, manifest), manifest.next.position.offset
            except MissingError as error:
                # Lost, if a manifest newer than the one that led here names it, too.
                if error.path == missing:
                    raise
                missing = error.path
        message = f"log {self.url}: maintenance replaced what was to be read again and again"
        raise UnavailableError(message)

    def _find(self, key: bytes, manifest: Manifest) -> int:
        first, match = manifest.first.position.offset, KeyMatch.of(key)
        with self._lock:
            known = self._known.get(key)
        if known is not None and not known.history.is_comparable(manifest):
            known = None
        tail = self._last(match, manifest.pointers, first if known is None else known.history.limit)
        if not tail and known is not None:
            if known.history.goes_on_in(manifest, self._keys.load_snapshot):
                tail = known.tail if known.tail >= first else 0
            else:
                tail = self._last(match, manifest.pointers, first)
        with self._lock:
            self._known[key] = _Known(tail, History.of(manifest))
            self._known.move_to_end(key)
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return tail

    def _last(self, match: KeyMatch, pointers: Sequence[Pointer], floor: int) -> int:
        count = max(1, self._keys.options.prefetch_fragments)
        begin = partial(self._keys.begin_hit, match)
        for _, hit in each_ahead(self._backwards(match, pointers, floor), begin, lambda: count):
            last = hit.index.last(match)
            if last is not None:
                return last if last >= floor else 0
        return 0

    def _backwards(self, match: KeyMatch, pointers: Sequence[Pointer], floor: int) -> Iterator[FragmentPointer]:
        """Go through the fragments that may have records of the key at or after an offset, the newest first."""
        for pointer in reversed(pointers):
            if pointer.limit.offset <= floor:
                return
            if isinstance(pointer, FragmentPointer):
                yield pointer
            else:
                yield from self._backwards(match, load_matching(self._keys, match, pointer).pointers, floor)
