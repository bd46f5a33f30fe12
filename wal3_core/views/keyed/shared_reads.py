"""What the readers of one log in a process share: what was read of it, and what is being read of it.

Fragments and key roll-ups never change, and no two have the same path, so what one reader has read serves all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from wal3_core.arguments import SECONDS_MAX
from wal3_core.options import MIB, Options, ReaderOptions, WriterOptions, within
from wal3_core.runtime import Cache
from wal3_core.runtime.loggers import READER

if TYPE_CHECKING:
    import pyarrow as pa

    from wal3_core.format.key_rollup import KeyRollup
    from wal3_core.format.manifest import Manifest
    from wal3_core.format.parquet import Arrangement
    from wal3_core.format.paths import LogId
    from wal3_core.runtime import Runtime
    from wal3_core.views.keyed.key_index import KeyIndex, Offsets

_BYTES_MAX = 2**63 - 1
_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedOptions(Options):
    """Limits of a keyed log.

    The keys of fragments take at most ``keys_cached_bytes_max`` bytes of memory, and the fragments that were read whole
    at most ``bodies_cached_bytes_max``; all that a process has open of one log share these. A conditional append is
    tried ``tries_max`` times while others append records of other keys. One that is not awaited blocks for
    ``append_timeout_s`` seconds at most, unless the call says otherwise. ``writer`` and ``reader`` are the log's.
    """

    keys_cached_bytes_max: int = field(default=64 * MIB, metadata=within(0, _BYTES_MAX))
    bodies_cached_bytes_max: int = field(default=64 * MIB, metadata=within(0, _BYTES_MAX))
    tries_max: int = field(default=64, metadata=within(1, _COUNT_MAX))
    append_timeout_s: float = field(default=60.0, metadata=within(0, SECONDS_MAX))
    writer: WriterOptions = field(default_factory=WriterOptions)
    reader: ReaderOptions = field(default_factory=ReaderOptions)


_ROLLUPS_BYTES_MAX = 2**24
_VERIFIED_MAX = 2**16
_STRAYS_MAX = 2**16
# Strays that are named, of those found at once.
_SHOWN_MAX = 10


class Strays:
    """The records of a log without a key, which are no key's: ``count`` of them were passed and reported, each once.

    One that is read again when ``_STRAYS_MAX`` others lie behind it may count twice.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._known: Offsets = np.zeros(0, dtype=np.uint64)
        self.count = 0

    def add(self, url: str, offsets: Offsets) -> None:
        """Count and report those that were not known."""
        with self._lock:
            new = np.setdiff1d(offsets, self._known)
            self._known = np.union1d(self._known, new)[-_STRAYS_MAX:]
            self.count += len(new)
        if len(new):
            shown = ", ".join(map(str, new[:_SHOWN_MAX].tolist())) + (", …" if len(new) > _SHOWN_MAX else "")
            READER.warning(
                "log %s: passed %d records without a key, which belong to no key of a keyed log, at offsets %s",
                url,
                len(new),
                shown,
            )


class SharedReads:
    """What was read of one life of a log: keys and rows of fragments, key roll-ups, the newest manifest."""

    def __init__(self, runtime: Runtime, options: KeyedOptions) -> None:
        # The registry tells runtimes apart by their identity, so this one must live as long.
        self.runtime = runtime
        # By path. Of a fragment that is arranged by key how it is, and by path and row groups what was read of these.
        self.keys: Cache[KeyIndex | Arrangement] = Cache(runtime, options.keys_cached_bytes_max, lambda x: x.num_bytes)
        self.rows: Cache[pa.Table] = Cache(runtime, options.bodies_cached_bytes_max, lambda table: int(table.nbytes))
        # One of no fragments stands for one that is missing.
        self.rollups: Cache[KeyRollup] = Cache(runtime, _ROLLUPS_BYTES_MAX, lambda rollup: 64 + 9 * rollup.num_hashes)
        # The fragments whose setsum was checked.
        self.verified: Cache[bool] = Cache(runtime, _VERIFIED_MAX, lambda _: 1)
        self.strays = Strays(runtime)
        # Only what is being loaded: what is held is ``newest``.
        self.manifests: Cache[Manifest] = Cache(runtime, 0, lambda _: 1)
        # The manifest that was loaded last, the version of the log's topic before that, and when the load began.
        self.newest: tuple[Manifest, int, float] | None = None


_known: WeakValueDictionary[tuple[int, str, LogId, bool], SharedReads] = WeakValueDictionary()


def shared_reads(runtime: Runtime, url: str, log_id: LogId, options: KeyedOptions) -> SharedReads:
    """Return what all readers of one life of the log at ``url`` share, while one of them lives.

    Those that verify what they read share nothing with those that do not. The limits are those of the reader that was
    opened first.
    """
    # Two threads may each make one at the same time: then they share less, and that is all.
    return _known.setdefault((id(runtime), url, log_id, options.reader.verify), SharedReads(runtime, options))
