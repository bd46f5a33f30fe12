"""Finds logs with garbage whose interval is over: one listing per log, and the store's clock if it may be over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.collect.deleter import Deleter
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.at_once import at_once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.options import CollectorOptions
    from wal3_core.storage.object_store import ObjectStore

# How wrong this machine's clock may be; the store's clock decides.
_CLOCK_SKEW_S_MAX = 60
_PERIOD_S_MIN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLog:
    """A log's due garbage documents: path, when the store last changed it, and for how many intervals it is due."""

    log: str
    documents: tuple[tuple[str, int, int], ...]


def find_due(store: ObjectStore, logs: Iterable[str], options: CollectorOptions) -> tuple[list[DueLog], dict[str, str]]:
    """Find the logs with garbage that is due, and those whose garbage cannot be read, with the reason.

    UnavailableError when the store does not answer.
    """
    look = partial(_look, store, options)
    due: list[DueLog] = []
    unreadable: dict[str, str] = {}
    for log, found in at_once(lambda log: (log, try_log(look, log)), logs):
        if isinstance(found, LogError):
            unreadable[log] = str(found)
        elif found.documents:
            due.append(found)
    return due, unreadable


def _look(store: ObjectStore, options: CollectorOptions, log: str) -> DueLog:
    deleter, now_us = Deleter(store, log, options=options), shared_runtime().now_us()
    due, store_now_us = [], None
    for meta in deleter.documents():
        age_s = (now_us - meta.last_modified_us) / US_PER_S
        if age_s < options.interval_s - _CLOCK_SKEW_S_MAX:
            continue
        store_now_us = deleter.store_now_us() if store_now_us is None else store_now_us
        if deleter.wait_s(meta.path, now_us=store_now_us) == 0:
            times = int(max(0.0, age_s - options.interval_s) // max(options.interval_s, _PERIOD_S_MIN))
            due.append((meta.path, meta.last_modified_us, times))
    return DueLog(log=log, documents=tuple(due))
