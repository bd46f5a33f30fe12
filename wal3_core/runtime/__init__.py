"""Everything that is not a function of its inputs: clocks, randomness, waiting, the shared workers; logs and metrics.

A simulator passes its own Runtime and so runs the library unmodified, from a seed, in virtual
time. Nothing else in the library touches ``time``, ``random``, ``uuid``, ``os.urandom`` or ``threading``,
except ``wal3_core/workers.py`` and the registry of memory stores in ``wal3_core/store/open_store.py``.

An interrupt (Ctrl-C, a signal handler that raises) reaches only the main thread, after any call. State
that the main thread shares with others here is changed by single calls that are not Python code:
locks entered and left by ``with``, a ``deque``, a ``SimpleQueue``. ``threading.Condition`` does not
qualify: an interrupt inside its ``__enter__`` leaves it locked for ever.
"""

from wal3_core.runtime.observer import SILENT, AppendEnd, CommitEnd, Conflict, Observer, RequestEnd
from wal3_core.runtime.outcome import (
    Cache,
    CancellableOutcome,
    NotifyingOutcome,
    Outcome,
    callbacks_held,
    each_ahead,
    later,
    map_ahead,
)
from wal3_core.runtime.port import US_PER_S, Closing, Lock, OwnThread, Runtime, Timer, reentered, wall_us
from wal3_core.runtime.threads import ThreadRuntime, shared_runtime

__all__ = [
    "SILENT",
    "US_PER_S",
    "AppendEnd",
    "Cache",
    "CancellableOutcome",
    "Closing",
    "CommitEnd",
    "Conflict",
    "Lock",
    "NotifyingOutcome",
    "Observer",
    "Outcome",
    "OwnThread",
    "RequestEnd",
    "Runtime",
    "ThreadRuntime",
    "Timer",
    "callbacks_held",
    "each_ahead",
    "later",
    "map_ahead",
    "reentered",
    "shared_runtime",
    "wall_us",
]
