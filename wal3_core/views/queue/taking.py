"""How a broker takes a queue: by a record with its token, which ends what the broker before can append."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wal3_core.errors import ConditionNotMetError, ContentionError, UnknownDurabilityError
from wal3_core.views.queue.encoding import BROKER_KEY
from wal3_core.views.queue.taken import fenced

if TYPE_CHECKING:
    from wal3_core.log.write.writer import LogWriter
    from wal3_core.views.queue.loading import LoadedQueue, QueueLoader

# How often one that takes a queue may lose its place as often as an append may.
_TAKES_MAX = 30
# How often it tries to take it as it was loaded: from a broker that appends all the time it cannot.
_AS_LOADED_MAX = 3


def take(writer: LogWriter, token: bytes, loader: QueueLoader) -> LoadedQueue:
    """Load a queue, and take it by appending the token; return it as it is then.

    It is loaded first: one that cannot be loaded is left to the broker that has it.
    """
    loaded = loader.load()
    for _ in range(_AS_LOADED_MAX):
        try:
            position = writer.append(token, key=BROKER_KEY, expect_next=loaded.end)
        except (ConditionNotMetError, UnknownDurabilityError):
            loaded = loader.load()
            if loaded.broker == token:
                return loaded
        else:
            return loaded.taken(token, position.timestamp_us)
    for _ in range(_TAKES_MAX):
        with contextlib.suppress(ContentionError):
            writer.append(token, key=BROKER_KEY)
            return loader.load()
    writer.append(token, key=BROKER_KEY)
    return loader.load()


def take_again(writer: LogWriter, token: bytes, loader: QueueLoader, url: str) -> None:
    """Append the token where the queue is known to be still its own; FencedError when another broker has taken it.

    An append of unknown outcome cannot land behind that record.
    """
    for tried in range(1, _TAKES_MAX + 1):
        broker, end = loader.broker()
        if broker != token:
            raise fenced(url)
        try:
            writer.append(token, key=BROKER_KEY, expect_next=end)
        except ConditionNotMetError:
            # Such an append was quicker, or another writer.
            if tried == _TAKES_MAX:
                raise
        else:
            return
