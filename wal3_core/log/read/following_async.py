"""Following a log from asyncio: the pass runs in a thread of its own, a few records at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from wal3_core.log.read.following import Following
    from wal3_core.model.record import Record

# Held at a time, on top of the fragments that the reader prefetches.
_RECORDS_MAX = 256


async def in_thread(following: Following) -> AsyncGenerator[Record, None]:
    """Go through the records of a pass; nothing is read while the caller works on the records it was given.

    The thread ends with the generator. It finishes the request under way; a pause ends at once.
    """
    import asyncio  # noqa: PLC0415 - its callers have it; for others it would be an eighth of the library's import

    # Not the loop's own executor: a follower waits most of the time, and would keep one of its few threads.
    thread = ThreadPoolExecutor(1, thread_name_prefix="wal3-follow")
    loop = asyncio.get_running_loop()
    try:
        while (taken := await loop.run_in_executor(thread, following.step, _RECORDS_MAX)) is not None:
            for record in taken:
                yield record
    finally:
        thread.shutdown(wait=False)
        following.wake()
