"""Retries: with growing, randomised pauses while a store does not answer, and once after a damaged answer.

``RetryingStore`` retries a store's reads: a short outage is no error for readers, cursors and maintenance. PUTs and
deletes are sent once: only the protocol knows what a repeated one means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from wal3_core.errors import CorruptError, MissingError, StoreDeniedError, UnavailableError
from wal3_core.options import TIMEOUT_S, RetryOptions, WriterOptions
from wal3_core.runtime import Runtime
from wal3_core.runtime.loggers import STORE
from wal3_core.store.object_store import WRITES, ObjectMeta, ObjectStore, StoreWrapper
from wal3_core.store.store_urls import named_in

T = TypeVar("T")

# The pause after one of 0, which would never grow by doubling.
_PAUSE_S_LEAST = 0.001


class Addressed(Protocol):
    """A store, or a wrapper of one: it has a URL."""

    @property
    def url(self) -> str:
        """Its URL, with the store's options."""
        ...


def timeout_s_of(url: str) -> float:
    """Return for how many seconds requests to a store are retried, as its URL says."""
    named = named_in(url).get("timeout_s")
    return TIMEOUT_S if named is None else float(named)


def delivery_s_of(options: WriterOptions, url: str) -> float:
    """Return an append's time: the writer's, else the store's."""
    given_s = options.delivery_timeout_s
    return timeout_s_of(url) if given_s is None else given_s


def for_store(options: RetryOptions, store: Addressed) -> RetryOptions:
    """Return the options with the store's own timeout if they have none."""
    return options if options.timeout_s is not None else replace(options, timeout_s=timeout_s_of(store.url))


def within(options: RetryOptions, timeout_s: float) -> RetryOptions:
    """Return the same options with a timeout that ends at the latest so many seconds from now."""
    given = options.timeout_s
    return replace(options, timeout_s=max(0.0, timeout_s if given is None else min(given, timeout_s)))


def longer_s(pause_s: float, pause_s_max: float) -> float:
    """Return the pause after a pause that was in vain."""
    return min(max(2 * pause_s, _PAUSE_S_LEAST), pause_s_max)


def attempts(options: RetryOptions, runtime: Runtime) -> Iterator[int]:
    """Count the tries from 1, sleeping between them; the last one starts when the timeout is over."""
    until_s = runtime.monotonic_s() + (TIMEOUT_S if options.timeout_s is None else options.timeout_s)
    pause_s = options.pause_s_min
    for attempt in range(1, options.attempts_max + 1):
        yield attempt
        left_s = until_s - runtime.monotonic_s()
        if left_s <= 0:
            return
        if attempt < options.attempts_max:
            runtime.sleep(min(pause_s * (0.5 + runtime.jitter()), left_s))
            pause_s = longer_s(pause_s, options.pause_s_max)


def until_answered(load: Callable[[], T], options: RetryOptions, runtime: Runtime) -> T:
    """Call ``load``, again while the store does not answer; raises the error of the last try."""
    for _ in attempts(options, runtime):
        try:
            return load()
        except StoreDeniedError:
            raise
        except UnavailableError as error:
            failure = error
    raise failure


def reread_if_damaged(load: Callable[[], T], place: Addressed) -> T:
    """Call ``load``, once more if it finds damage: bytes damaged in transit are not damaged at rest.

    Damage is logged with the URL of ``place``.
    """
    try:
        return load()
    except MissingError:
        raise
    except CorruptError as error:
        STORE.warning("%s: damaged as read, to be read once more: %s", place.url, error)
    # Loaded again after that block: inside it, the error would keep the damaged bytes in memory meanwhile.
    try:
        return load()
    except MissingError:
        raise
    except CorruptError as error:
        STORE.error("%s: damaged: %s", place.url, error)
        raise


class RetryingStore(StoreWrapper):
    """Another store's objects; reads are retried, as the options say, while that store does not answer."""

    def __init__(self, store: ObjectStore, retry: RetryOptions, runtime: Runtime) -> None:
        super().__init__(store)
        self._retry = for_store(retry, store)
        self._runtime = runtime

    def _sent(self, kind: str, path: str, send: Callable[[], T]) -> T:
        del path
        return send() if kind in WRITES else until_answered(send, self._retry, self._runtime)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder; a listing that breaks off continues after its last path."""
        while True:
            for _ in attempts(self._retry, self._runtime):
                before = start_after
                try:
                    for meta in self._store.list_objects(folder, start_after=start_after):
                        yield meta
                        start_after = meta.path
                except StoreDeniedError:
                    raise
                except UnavailableError as error:
                    failure = error
                else:
                    return
                if start_after != before:
                    # It has answered since: this is a new outage.
                    break
            else:
                raise failure


def with_retries(store: ObjectStore, runtime: Runtime, retry: RetryOptions | None = None) -> RetryingStore:
    """Return the store with its reads retried; one that retries them already is returned as it is."""
    return store if isinstance(store, RetryingStore) else RetryingStore(store, retry or RetryOptions(), runtime)
