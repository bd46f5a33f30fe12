"""Limits on what is sent to a store: requests of one kind per second, and bytes per second.

``TokenBuckets`` is the arithmetic of requests: two buckets, whose rate is halved when the store asks to slow down and
restored by success. ``Throttle`` lets callers wait for their turn, ``ThrottledStore`` sends their requests. First tries
get at most ``_FIRST_TRIES`` of the rate; the rest is for urgent requests, which are retries and CASes. So new work
never starves what earlier work needs to finish. Among those that may be sent, the one that has waited longest comes
first, so neither kind starves.

A waiting request occupies the thread of its caller, often one of the shared workers (``wal3_core/workers.py``). Other
stores go on meanwhile: no store gets more than its cap of the workers.

``RateLimitedStore`` keeps background work to a number of bytes a second. It knows no urgent requests: a manifest must
not be swapped through it.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.runtime import Outcome, Runtime
from wal3_core.runtime.loggers import STORE, Seldom
from wal3_core.store.object_store import Buffer, Done, ObjectMeta, ObjectStore, PutOutcome, StoreWrapper, Unknown

# The share of the rate that first tries can use.
_FIRST_TRIES = 0.9
# The share of a second's requests that can be sent at once.
_BURST = 0.02
# The lowest rate after halvings: six of them, but one request a second if the limit is at least that.
_FLOOR = 1 / 64
_FLOOR_PER_S = 1.0
# Stores count requests by the second: an answer to a request that was sent earlier after a change of the rate says
# nothing about the new rate.
_SETTLES_S = 1.0
# The share of the limit that the rate regains every time.
_REGAINED = 0.05
# The wait of a caller that is not next, in case the one before it was interrupted.
_RECHECK_S = 1.0
# The part of a token that rounding may lose.
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleStats:
    """One kind of requests to one place; counts start when the place was opened first.

    ``rate_per_s`` is the current rate, ``rate_per_s_max`` the limit that it returns to. ``requests`` counts what was
    let through, ``waiting`` is how many requests wait now, ``throttled`` how many have waited, ``throttled_s`` for how
    many seconds in all, ``expired`` how many of them were not sent in time. ``halvings`` counts how often the store
    made the rate halve.
    """

    rate_per_s: float
    rate_per_s_max: float
    requests: int
    waiting: int
    throttled: int
    throttled_s: float
    expired: int
    halvings: int


class _Bucket:
    """Tokens, up to a capacity."""

    __slots__ = ("capacity", "per_s", "tokens")

    def __init__(self, capacity: float, per_s: float) -> None:
        self.tokens = self.capacity = capacity
        self.per_s = per_s

    def set(self, capacity: float, per_s: float) -> None:
        self.capacity, self.per_s = capacity, per_s
        self.tokens = min(self.tokens, capacity)

    def add(self, tokens: float) -> None:
        self.tokens = min(self.capacity, self.tokens + tokens)

    def wait_s(self) -> float:
        return 0.0 if self.tokens >= 1 - _EPSILON else (1 - self.tokens) / self.per_s


class TokenBuckets:
    """When requests can be sent, at times that never run backwards. To be used under a lock.

    In each second at most ``rate_per_s`` requests, rounded up, can be taken, of whatever kind and pattern.
    """

    __slots__ = ("_changed_s", "_filled_s", "_first", "_halved_s", "_whole", "halvings", "rate_per_s", "rate_per_s_max")

    def __init__(self, rate_per_s_max: float, now_s: float) -> None:
        self.rate_per_s = self.rate_per_s_max = rate_per_s_max
        self.halvings = 0
        self._filled_s = now_s
        self._halved_s = self._changed_s = float("-inf")
        # Of all requests, and of first tries, which need a token of each.
        self._whole = _Bucket(*_sizes(rate_per_s_max, 1))
        self._first = _Bucket(*_sizes(rate_per_s_max, _FIRST_TRIES))

    def limit(self, rate_per_s_max: float) -> None:
        """Change the limit; a rate that was halved regains only by success."""
        whole = self.rate_per_s == self.rate_per_s_max
        self.rate_per_s_max = rate_per_s_max
        self._set(rate_per_s_max if whole else min(self.rate_per_s, rate_per_s_max))

    def wait_s(self, now_s: float, *, urgent: bool) -> float:
        """Return how long it takes until a request can be sent, 0 if one can be now."""
        passed_s = now_s - self._filled_s
        if passed_s > 0:
            self._filled_s = now_s
            self._whole.add(passed_s * self._whole.per_s)
            self._first.add(passed_s * self._first.per_s)
        return self._whole.wait_s() if urgent else max(self._whole.wait_s(), self._first.wait_s())

    def take(self, now_s: float, *, urgent: bool) -> bool:
        """Take a request's token if there is one."""
        if self.wait_s(now_s, urgent=urgent):
            return False
        self._whole.tokens -= 1
        if not urgent:
            self._first.tokens -= 1
        return True

    def give_back(self, *, urgent: bool) -> None:
        """Return the token of a request that is not sent."""
        self._whole.add(1)
        if not urgent:
            self._first.add(1)

    def slow_down(self, sent_s: float, now_s: float) -> bool:
        """Halve the rate, unless that was done since shortly before the request was sent; return whether it was."""
        if sent_s < self._halved_s + _SETTLES_S:
            return False
        self._halved_s = self._changed_s = now_s
        self.halvings += 1
        floor = max(self.rate_per_s_max * _FLOOR, min(_FLOOR_PER_S, self.rate_per_s_max))
        self._set(max(self.rate_per_s / 2, floor))
        return True

    def answered(self, sent_s: float, now_s: float) -> None:
        """Regain a part of the rate, if the answered request was sent at the current one."""
        if self.rate_per_s < self.rate_per_s_max and sent_s >= self._changed_s + _SETTLES_S:
            self._changed_s = now_s
            self._set(min(self.rate_per_s + self.rate_per_s_max * _REGAINED, self.rate_per_s_max))

    def _set(self, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self._whole.set(*_sizes(rate_per_s, 1))
        self._first.set(*_sizes(rate_per_s, _FIRST_TRIES))


def _sizes(rate_per_s: float, share: float) -> tuple[float, float]:
    """Return a bucket's capacity and tokens per second: a full one gives no more than the rate within a second."""
    capacity = max(1.0, rate_per_s * _BURST)
    return max(1.0, capacity * share), (rate_per_s - (capacity - 1)) * share


class _QueuedRequest:
    """A request that waits for its turn. Changed under the throttle's lock."""

    __slots__ = ("granted", "next", "number", "until_s", "urgent", "woken")

    def __init__(self, number: int, until_s: float, *, urgent: bool) -> None:
        self.number = number
        self.until_s = until_s
        self.urgent = urgent
        self.granted = False
        # Whether it knows that it is the first of its queue, and so has to look when its time comes.
        self.next = False
        self.woken: Outcome[None] = Outcome()

    def wake(self) -> None:
        self.woken.set_or_rouse()


class Throttle:
    """Lets requests of one kind to one place pass at a limited rate, from any thread.

    A waiting request holds no lock, only its thread. An interrupted one gives its turn to the next.
    """

    def __init__(self, place: str, kind: str, rate_per_s_max: float, runtime: Runtime) -> None:
        self._place = place
        self.kind = kind
        self._runtime = runtime
        self._lock = runtime.lock()
        self._buckets = TokenBuckets(rate_per_s_max, runtime.monotonic_s())
        # First tries, and urgent requests; each in the order of arrival.
        self._queues: tuple[deque[_QueuedRequest], deque[_QueuedRequest]] = (deque(), deque())
        self._numbers = itertools.count()
        self._slowed = Seldom(runtime, STORE)
        self._requests = self._throttled = self._expired = 0
        self._throttled_s = 0.0

    def limit(self, rate_per_s_max: float) -> None:
        """Change the limit."""
        with self._lock:
            self._buckets.limit(rate_per_s_max)

    def stats(self) -> ThrottleStats:
        """Return the current figures."""
        with self._lock:
            return ThrottleStats(
                rate_per_s=self._buckets.rate_per_s,
                rate_per_s_max=self._buckets.rate_per_s_max,
                requests=self._requests,
                waiting=sum(map(len, self._queues)),
                throttled=self._throttled,
                throttled_s=self._throttled_s,
                expired=self._expired,
                halvings=self._buckets.halvings,
            )

    def enter(self, timeout_s: float, *, urgent: bool = False) -> None:
        """Wait until a request can be sent; UnavailableError after ``timeout_s`` seconds: it must not be sent then."""
        now_s = self._runtime.monotonic_s()
        with self._lock:
            if not any(self._queues) and self._buckets.take(now_s, urgent=urgent):
                self._requests += 1
                return
        waiter = _QueuedRequest(next(self._numbers), now_s + timeout_s, urgent=urgent)
        try:
            self._await_turn(waiter)
        except BaseException:
            self._leave(waiter)
            raise
        finally:
            waited_s = self._runtime.monotonic_s() - now_s
            with self._lock:
                self._throttled += 1
                self._throttled_s += waited_s
            self._runtime.observer.throttled(self._place, self.kind, waited_s)

    def answered(self, sent_s: float) -> None:
        """Note that the store has answered a request that was sent then."""
        if self._buckets.rate_per_s < self._buckets.rate_per_s_max:
            with self._lock:
                self._buckets.answered(sent_s, self._runtime.monotonic_s())

    def slow_down(self, sent_s: float) -> None:
        """Note that the store has refused a request that was sent then, because there are too many."""
        with self._lock:
            halved = self._buckets.slow_down(sent_s, self._runtime.monotonic_s())
            rate_per_s = self._buckets.rate_per_s
        if halved:
            self._runtime.observer.slowed(self._place, self.kind)
            self._slowed.warn(
                "store %s: asks to slow down: %g %s a second", self._place, round(rate_per_s, 3), self.kind
            )

    def _await_turn(self, waiter: _QueuedRequest) -> None:
        with self._lock:
            self._queues[waiter.urgent].append(waiter)
        while True:
            now_s = self._runtime.monotonic_s()
            with self._lock:
                self._grant(now_s)
                if waiter.granted:
                    return
                if now_s >= waiter.until_s:
                    self._expired += 1
                    break
                pause_s = min(self._pause_s(waiter, now_s), waiter.until_s - now_s)
                waiter.woken = Outcome()
            with suppress(TimeoutError):
                self._runtime.wait(waiter.woken, pause_s)
        raise UnavailableError(
            f"store {self._place}: throttled: {self.kind} are limited to {round(self._buckets.rate_per_s, 3):g} a"
            f" second, and this request was not sent in time"
        )

    def _grant(self, now_s: float) -> None:
        """Let those pass that can, and wake the first of those that cannot."""
        while (waiter := self._next(now_s)) is not None:
            self._buckets.take(now_s, urgent=waiter.urgent)
            self._requests += 1
            self._queues[waiter.urgent].popleft()
            waiter.granted = True
            waiter.wake()
        for queue in self._queues:
            if queue and not queue[0].next:
                queue[0].wake()

    def _next(self, now_s: float) -> _QueuedRequest | None:
        """Return who can pass: of the first ones in each queue, the one that came first."""
        firsts = [queue[0] for queue in self._queues if queue]
        ready = [waiter for waiter in firsts if not self._buckets.wait_s(now_s, urgent=waiter.urgent)]
        return min(ready, key=lambda waiter: waiter.number, default=None)

    def _pause_s(self, waiter: _QueuedRequest, now_s: float) -> float:
        waiter.next = self._queues[waiter.urgent][0] is waiter
        if not waiter.next:
            return _RECHECK_S
        # Spread by a request's time, so that processes that were slowed down together do not stay in step.
        return self._buckets.wait_s(now_s, urgent=waiter.urgent) + self._runtime.jitter() / self._buckets.rate_per_s

    def _leave(self, waiter: _QueuedRequest) -> None:
        """Give the turn of a request that is not sent to the next."""
        with self._lock:
            if waiter.granted:
                self._buckets.give_back(urgent=waiter.urgent)
                self._requests -= 1
            else:
                with suppress(ValueError):
                    self._queues[waiter.urgent].remove(waiter)
            self._grant(self._runtime.monotonic_s())


T = TypeVar("T")

# The objects in one answer to a list request; each answer takes a turn.
_PAGE_OBJECTS = 1000
# The requests without an answer that are remembered, to know their retries.
_UNANSWERED_MAX = 1000
# The kinds of requests that take turns of the throttle of reads; the others take those of writes.
_READS = frozenset({"read", "get", "head"})


class ThrottledStore(StoreWrapper):
    """Another store's objects; each request is sent once, when its turn comes.

    GET and HEAD are reads. PUT, DELETE and LIST are writes: S3 publishes no rate for LIST, but says that it is not that
    of GET. A listing of folders takes one turn, however many requests it needs. A throttle that is None limits
    nothing.

    UnavailableError "throttled" when the turn did not come within ``wait_s_max`` seconds: then the request was not
    sent, and a PUT was certainly not applied.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        *,
        writes: Throttle | None,
        reads: Throttle | None,
        wait_s_max: float,
    ) -> None:
        super().__init__(store)
        self._runtime = runtime
        self._writes = writes
        self._reads = reads
        self._wait_s_max = wait_s_max
        self._process = os.getpid()
        # Whose next try is a retry: a PUT, or a read.
        self._unanswered: dict[tuple[bool, str], None] = {}

    @property
    def throttles(self) -> dict[str, ThrottleStats]:
        """The figures of each throttle, by the kind of its requests: ``writes`` and ``reads``."""
        return {each.kind: each.stats() for each in (self._writes, self._reads) if each is not None}

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        listing = iter(self._store.list_objects(folder, start_after=start_after))
        more = True
        while more:
            page = self._sent("list", folder, lambda: list(islice(listing, _PAGE_OBJECTS)))
            yield from page
            more = len(page) == _PAGE_OBJECTS

    def _sent(self, kind: str, path: str, send: Callable[[], T]) -> T:
        is_read = kind in _READS
        # A read, also when it shows what became of a PUT; a replace, which what was begun needs to finish.
        urgent = kind == "replace" or (is_read and (True, path) in self._unanswered)
        return self._in_turn(self._reads if is_read else self._writes, (not is_read, path), send, urgent=urgent)

    def _in_turn(
        self, throttle: Throttle | None, request: tuple[bool, str], send: Callable[[], T], *, urgent: bool
    ) -> T:
        # A fork inherits the throttle, perhaps with its lock held, but cannot use the store.
        if throttle is None or os.getpid() != self._process:
            return send()
        throttle.enter(self._wait_s_max, urgent=urgent or request in self._unanswered)
        sent_s = self._runtime.monotonic_s()
        try:
            outcome = send()
        except StoreDeniedError:
            raise
        except UnavailableError as error:
            self._failed(throttle, request, sent_s, slow_down=error.slow_down)
            raise
        if isinstance(outcome, Unknown):
            self._failed(throttle, request, sent_s, slow_down=outcome.slow_down)
        else:
            self._unanswered.pop(request, None)
            throttle.answered(sent_s)
        return outcome

    def _failed(self, throttle: Throttle, request: tuple[bool, str], sent_s: float, *, slow_down: bool) -> None:
        if len(self._unanswered) >= _UNANSWERED_MAX:
            # Most were never sent again.
            self._unanswered.clear()
        self._unanswered[request] = None
        if slow_down:
            throttle.slow_down(sent_s)


def throttle_stats(store: ObjectStore) -> dict[str, ThrottleStats]:
    """Return the figures of the throttles of a store from ``open_store``, by kind; none if it has none."""
    return store.throttles if isinstance(store, ThrottledStore) else {}


class ByteRate:
    """Makes its callers, from any thread, wait until the bytes that they have moved are paid for by time."""

    def __init__(self, bytes_per_s: float, runtime: Runtime) -> None:
        self._bytes_per_s = bytes_per_s
        self._runtime = runtime
        self._lock = runtime.lock()
        # When all bytes so far are paid for.
        self._paid_s = runtime.monotonic_s()

    def pay(self, num_bytes: int) -> None:
        """Block for as long as these bytes take at the rate, after all those before them."""
        now_s = self._runtime.monotonic_s()
        with self._lock:
            # Time in which nothing was moved is lost: no burst follows a pause.
            self._paid_s = until_s = max(self._paid_s, now_s) + num_bytes / self._bytes_per_s
        if until_s > now_s:
            self._runtime.sleep(until_s - now_s)


class RateLimitedStore(StoreWrapper):
    """Another store's objects; the bytes of reads and of creates are paid for after the request."""

    def __init__(self, store: ObjectStore, rate: ByteRate) -> None:
        super().__init__(store)
        self._rate = rate

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        found = self._store.read(path, start=start, length=length)
        self._rate.pay(len(found or b""))
        return found

    def create(self, path: str, data: Buffer) -> PutOutcome:
        outcome = self._store.create(path, data)
        # One without an answer is tried again first: its caller has only so much time.
        if isinstance(outcome, Done):
            self._rate.pay(len(data))
        return outcome


def rate_limited(store: ObjectStore, bytes_per_s_max: float | None, runtime: Runtime) -> ObjectStore:
    """Keep a store's reads and creates to a rate, all of them together; None for no limit."""
    return store if bytes_per_s_max is None else RateLimitedStore(store, ByteRate(bytes_per_s_max, runtime))
