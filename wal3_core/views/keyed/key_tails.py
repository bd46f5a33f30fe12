"""The last record of each key: read backwards from the log's end, and remembered, so that only what is new is read."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import MissingError, UnavailableError
from wal3_core.model.fragment import FragmentPointer
from wal3_core.views.keyed.key_index import KeyMatch
from wal3_core.views.keyed.key_reader import load_matching
from wal3_core.views.keyed.shared_reads import each_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer
    from wal3_core.views.keyed.key_reader import KeyReader

_KNOWN_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A key's last record below an offset, 0 for none, by a manifest that ``passes`` compactions have gone over."""

    tail: int
    limit: int
    passes: int
    generation: int

    def holds_in(self, manifest: Manifest) -> bool:
        """Tell whether a manifest has it, too: a pass may have dropped the record, and a restore all at the end."""
        return self.passes == manifest.compaction.passes and self.generation <= manifest.generation


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
        first, end = manifest.first.position.offset, manifest.next.position.offset
        with self._lock:
            known = self._known.get(key)
        before, limit = (known.tail, known.limit) if known is not None and known.holds_in(manifest) else (0, first)
        found = self._last(KeyMatch(key), manifest.pointers, limit)
        tail = found or (before if before >= first else 0)
        with self._lock:
            passes = manifest.compaction.passes
            self._known[key] = _Known(tail=tail, limit=end, passes=passes, generation=manifest.generation)
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
