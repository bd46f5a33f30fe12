"""The fragments that a read by key comes to, and which of them are worth reading whole at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.views.keyed.key_index import KeyIndex

# So many fragments in a row that have records of the keys: the next one is likely to have some, too.
_RUN_MIN = 4
# Looked up ahead: mostly a request or two for some kilobytes of each, at most all of these bytes.
_AHEAD_MAX = 8
_AHEAD_BYTES_MAX = 2**26
_WHOLE_BYTES_MAX = 2**22


@dataclass(frozen=True, slots=True)
class Hit:
    """A fragment that was looked up for some keys. ``index`` has all of its records of these, and may have others.

    The rows to read are those of the row groups with these ``numbers``, if it is arranged by key, else all. ``table``
    has them if they were read already.
    """

    pointer: FragmentPointer
    index: KeyIndex
    numbers: range | None = None
    table: pa.Table | None = None


class Run:
    """How a read goes on, by the fragments that it came to last; ``prefetch`` large ones are read whole ahead.

    While each has records of the keys, and their rows are ``wanted``, the next one is read whole at once: its keys are
    in what is read, so that asking for them first would take requests and time for nothing. Of a fragment that is
    arranged by key, a part is enough.
    """

    def __init__(self, prefetch: int, *, wanted: bool) -> None:
        self._prefetch = max(1, prefetch)
        self._wanted = wanted
        self._length = 0
        self._bytes_max = 0
        self._ahead = self._prefetch

    @property
    def ahead(self) -> int:
        """How many fragments to look up ahead: more of them each time, but few large ones that are read whole."""
        if self._length < _RUN_MIN:
            return self._ahead
        return max(self._prefetch, min(self._ahead, _WHOLE_BYTES_MAX // max(1, self._bytes_max)))

    def add(self, hit: Hit, *, held: bool) -> None:
        """Note which fragment the read came to, and whether it has records of the keys."""
        most = min(_AHEAD_MAX, _AHEAD_BYTES_MAX // max(1, hit.pointer.num_bytes))
        self._ahead = max(self._prefetch, min(most, self._ahead + 1))
        if not self._wanted:
            return
        self._length = self._length + 1 if held and hit.numbers is None else 0
        self._bytes_max = max(self._bytes_max, hit.pointer.num_bytes) if self._length else 0

    def goes_on_with(self, pointer: FragmentPointer) -> bool:
        """Whether a fragment is likely to have records of the keys, and to be none that is arranged by key."""
        return self._length >= _RUN_MIN and pointer.num_bytes <= 2 * self._bytes_max
