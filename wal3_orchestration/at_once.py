"""Many logs, several at a time: most of the time that a log takes, the store is waited for."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

S = TypeVar("S")
T = TypeVar("T")

LOGS_AT_ONCE = 16


def at_once(work: Callable[[S], T], logs: Iterable[S], *, count: int = LOGS_AT_ONCE) -> Iterator[T]:
    """Yield what is found for each log, in order. Only a few are worked on ahead, so that few results are held."""
    rest = iter(logs)
    with ThreadPoolExecutor(count, thread_name_prefix="log") as threads:
        ahead = deque(threads.submit(work, log) for log in islice(rest, 2 * count))
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(threads.submit(work, log) for log in islice(rest, 1))
