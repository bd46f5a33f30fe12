"""Checks whether a store keeps the promises a log depends on, and measures its latency.

Works in a folder of its own, and removes it. Source: docs/protocol.md, "Object store contract".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from wal3_core.errors import LogError, UnavailableError
from wal3_core.runtime import US_PER_S, Outcome, Runtime, shared_runtime
from wal3_core.storage.object_store import (
    Done,
    Etag,
    FolderStore,
    NotModified,
    ObjectStore,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
    share_of,
)
from wal3_core.storage.open_store import open_store
from wal3_core.storage.patient import patient
from wal3_core.storage.store_urls import options_of_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wal3_core.model.strict_json import JsonObject

T = TypeVar("T")

_RACERS = 8
_INCREMENTS = 10
_CREATE_ROUNDS = 10
# Ends the race on a slow store, of one swap a second; swaps acknowledged until then are checked.
_RACE_S_MAX = 20.0
# How long objects are replaced while a list is asked for again and again.
_LIST_RACE_S = 1.0
_MOVED = ("moved/a", "moved/b", "moved/c", "moved/d")
_LATENCY_SAMPLES = 15
_SAMPLE = bytes(1024)
_CLOCK_DIFFERENCE_US_NOTED = 5_000_000
# Turns a version into one of the same form that no object has.
_OTHER_DIGITS = str.maketrans("0123456789abcdef", "123456789abcdef0")
_LISTED = ("list/a-1", "list/a.1", "list/a/1", "list/a0", "list/b")


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: whether the store keeps it, and what was found."""

    name: str
    passed: bool
    found: str

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {"name": self.name, "passed": self.passed, "found": self.found}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The result of ``examine``; latencies are medians of requests made one at a time, in microseconds.

    ``clock_difference_us`` is how far the store's clock is ahead of this process's, to about a second.
    """

    url: str
    checks: tuple[Check, ...]
    put_us: int
    get_us: int
    cas_us: int
    clock_difference_us: int
    advice: tuple[str, ...]

    @property
    def suitable(self) -> bool:
        """Whether logs can live there."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "url": self.url,
            "suitable": self.suitable,
            "checks": [check.to_json() for check in self.checks],
            "put_us": self.put_us,
            "get_us": self.get_us,
            "cas_us": self.cas_us,
            "clock_difference_us": self.clock_difference_us,
            "advice": list(self.advice),
        }


def examine(
    store: ObjectStore, *, runtime: Runtime | None = None, progress: Callable[[str], None] | None = None
) -> DoctorReport:
    """Examine a store by some hundred small requests, and by what it answers in a second; ``progress`` gets each step.

    A broken promise is in the report; UnavailableError when the store does not answer at all.
    """
    runtime = runtime or shared_runtime()
    store = patient(store, runtime)
    folder = f".wal3-doctor-{runtime.token()}/"
    examination = _Examination(FolderStore(store, folder), runtime, progress or (lambda _: None))
    examination.reach()
    try:
        report = examination.run(store.url, folder)
    except BaseException:
        with contextlib.suppress(LogError):
            _clean(store, folder)
        raise
    _clean(store, folder)
    return report


def _clean(store: ObjectStore, folder: str) -> None:
    for meta in list(store.list_objects(folder)):
        store.delete(meta.path)


class _Examination:
    """One examination; ``store`` is its own folder."""

    def __init__(self, store: ObjectStore, runtime: Runtime, progress: Callable[[str], None]) -> None:
        self._store = store
        self._runtime = runtime
        self._progress = progress
        self._checks: list[Check] = []
        self._advice: list[str] = []
        self._curable = False

    def reach(self) -> None:
        """Write a first object; UnavailableError when that fails."""
        self._created("first", b"")

    def run(self, url: str, folder: str) -> DoctorReport:
        """Run all checks and measurements."""
        self._progress("conditions on PUT")
        self._check_create()
        swaps = self._check_replace(url, folder)
        self._progress("reading and listing")
        self._check_get()
        self._check_list()
        self._check_case()
        self._progress("racing creates")
        self._check_racing_creates()
        if swaps:
            self._progress("racing swaps")
            self._check_racing_swaps()
            self._check_racing_lists()
        self._progress("latency and clock")
        put_us, get_us, cas_us = self._measure()
        clock_difference_us = self._clock_difference_us()
        self._check_delete()
        if not self._curable and not all(check.passed for check in self._checks):
            self._advice.append("do not keep logs here: appends that were acknowledged could be lost")
        return DoctorReport(
            url=url,
            checks=tuple(self._checks),
            put_us=put_us,
            get_us=get_us,
            cas_us=cas_us,
            clock_difference_us=clock_difference_us,
            advice=tuple(self._advice),
        )

    def _note(self, name: str, found: str, *, passed: bool) -> None:
        self._checks.append(Check(name, passed, found))

    def _created(self, path: str, data: bytes) -> Etag:
        outcome = self._store.create(path, data)
        if not isinstance(outcome, Done):
            message = f"store {self._store.url}: expected a new object to be written, found it {_shown(outcome)}"
            raise UnavailableError(message)
        return outcome.etag

    def _check_create(self) -> None:
        etag = self._created("create", b"first")
        second = self._store.create("create", b"second")
        kept = self._store.read("create") == b"first"
        found = f"{_shown(second)}, the object {'kept' if kept else 'overwritten'}"
        self._note("a second create is refused", found, passed=kept and not isinstance(second, Done))
        missing = self._store.replace("missing", b"1", etag)
        self._note("a replace of a missing object is refused", _shown(missing), passed=not isinstance(missing, Done))

    def _check_replace(self, url: str, folder: str) -> bool:
        """Return whether objects can be replaced at all."""
        old = self._created("replace", b"1")
        replaced = self._store.replace("replace", b"2", old)
        done = isinstance(replaced, Done) and self._store.read("replace") == b"2"
        self._note("a replace with the current version is done", _shown(replaced), passed=done)
        if not done:
            # The old version may still be current, so a stale one cannot be tried.
            if _works_with_unquoted_etags(url, folder):
                self._curable = True
                self._advice.append(f"this server expects unquoted ETags: open it as {_with_unquoted_etags(url)}")
            return False
        stale = self._store.replace("replace", b"3", old)
        kept = self._store.read("replace") == b"2"
        found = f"{_shown(stale)}, the object {'kept' if kept else 'overwritten'}"
        passed = kept and not isinstance(stale, Done)
        self._note("a replace with a stale version is refused", found, passed=passed)
        return True

    def _check_get(self) -> None:
        etag = self._created("get", b"0123456789")
        same = self._store.get("get", if_none_match=etag)
        self._note(
            "a conditional GET skips an unchanged object", type(same).__name__, passed=isinstance(same, NotModified)
        )
        other = self._store.get("get", if_none_match=Etag(etag.translate(_OTHER_DIGITS)))
        passed = isinstance(other, Versioned) and other.data == b"0123456789"
        self._note("a conditional GET of a changed object reads it", type(other).__name__, passed=passed)
        part = self._store.read("get", start=3, length=4)
        self._note("a ranged GET reads the range", repr(part), passed=part == b"3456")

    def _check_list(self) -> None:
        for path in reversed(_LISTED):
            self._created(path, b"")
        paths = [meta.path for meta in self._store.list_objects("list/")]
        complete = sorted(paths) == sorted(_LISTED)
        self._note("a list names every object at once", f"{len(paths)} of {len(_LISTED)}", passed=complete)
        self._note("a list is in order of paths", " ".join(paths), passed=paths == sorted(paths))
        after = [meta.path for meta in self._store.list_objects("list/", start_after=_LISTED[1])]
        self._note("a list starts after a given path", " ".join(after), passed=set(after) == set(_LISTED[2:]))

    def _check_case(self) -> None:
        """Check that the store does not fold case, which would make one log of ``a`` and ``A``."""
        self._created("case/name", b"small")
        other = self._store.create("case/NAME", b"large")
        kept = self._store.read("case/name") == b"small" and isinstance(other, Done)
        self._note("names that differ in case are two objects", f"the second {_shown(other)}", passed=kept)

    def _check_racing_creates(self) -> None:
        acknowledged = lost = 0
        for number in range(_CREATE_ROUNDS):
            path = f"race/{number}"
            outcomes = self._race([self._creation(path, racer) for racer in range(_RACERS)])
            present = self._store.read(path)
            winners = [b"%d" % racer for racer, outcome in enumerate(outcomes) if isinstance(outcome, Done)]
            acknowledged += len(winners)
            lost += sum(winner != present for winner in winners)
        found = f"{_RACERS} writers, {_CREATE_ROUNDS} objects: {acknowledged} acknowledged, {lost} of them lost"
        self._note("one of several racing creates is done", found, passed=lost == 0 and acknowledged > 0)

    def _creation(self, path: str, racer: int) -> Callable[[], PutOutcome]:
        return lambda: self._store.create(path, b"%d" % racer)

    def _check_racing_swaps(self) -> None:
        self._created("swap", b"")
        limit_s = self._runtime.monotonic_s() + _RACE_S_MAX
        swapped = self._race([self._swaps(racer, limit_s) for racer in range(_RACERS)])
        acknowledged = [mark for marks in swapped for mark in marks]
        present = (self._store.read("swap") or b"").split()
        lost = len(acknowledged) - sum(mark in present for mark in acknowledged)
        found = f"{_RACERS} writers: {len(acknowledged)} acknowledged, {lost} of them lost"
        self._note("racing swaps lose nothing", found, passed=lost == 0 and bool(acknowledged))

    def _swaps(self, racer: int, limit_s: float) -> Callable[[], list[bytes]]:
        """Make a task that adds its own marks to the object, and returns those that were acknowledged."""

        def run() -> list[bytes]:
            acknowledged: list[bytes] = []
            attempt = 0
            while len(acknowledged) < _INCREMENTS and self._runtime.monotonic_s() < limit_s:
                attempt += 1
                # Never the same twice: one whose outcome is unknown may already be stored.
                mark = b"%d.%d" % (racer, attempt)
                if self._swap(mark):
                    acknowledged.append(mark)
            return acknowledged

        return run

    def _swap(self, mark: bytes) -> bool:
        found = self._store.get("swap")
        if not isinstance(found, Versioned):
            return False
        return isinstance(self._store.replace("swap", found.data + mark + b" ", found.etag), Done)

    def _check_racing_lists(self) -> None:
        """Check that a list names what is replaced meanwhile, as cursors are: what they keep would be collected."""
        moving = [self._moves(path, self._created(path, b"")) for path in _MOVED]
        lists, *moves = self._race([self._lists, *moving])
        found = f"{len(lists)} lists during {sum(map(len, moves))} replaces: {sum(lists)} names left out"
        self._note("a list names what is replaced meanwhile", found, passed=not any(lists))

    def _lists(self) -> list[int]:
        """Count, for each list, the names that it leaves out."""
        missing: list[int] = []
        limit_s = self._runtime.monotonic_s() + _LIST_RACE_S
        while not missing or self._runtime.monotonic_s() < limit_s:
            missing.append(len(_MOVED) - len(list(self._store.list_objects("moved/"))))
        return missing

    def _moves(self, path: str, etag: Etag) -> Callable[[], list[int]]:
        """Make a task that replaces an object over and over, and returns the numbers of the replaces that were done."""

        def run() -> list[int]:
            done: list[int] = []
            limit_s = self._runtime.monotonic_s() + _LIST_RACE_S
            outcome: PutOutcome = Done(etag)
            while isinstance(outcome, Done) and self._runtime.monotonic_s() < limit_s:
                outcome = self._store.replace(path, b"%d" % len(done), outcome.etag)
                done += [len(done)] * isinstance(outcome, Done)
            return done

        return run

    def _race(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        futures = [self._start(task) for task in tasks]
        for future in futures:
            # All end before an error is raised: none must write after the cleaning.
            with contextlib.suppress(LogError):
                self._runtime.wait(future)
        return [self._runtime.wait(future) for future in futures]

    def _start(self, task: Callable[[], T]) -> Outcome[T]:
        future: Outcome[T] = Outcome()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                future.set_exception(error)

        self._runtime.spawn(run, share=share_of(self._store))
        return future

    def _measure(self) -> tuple[int, int, int]:
        """Return the medians of a create, a read and a swap."""
        puts_s: list[float] = []
        gets_s: list[float] = []
        swaps_s: list[float] = []
        for number in range(_LATENCY_SAMPLES):
            path = f"latency/{number}"
            start_s = self._runtime.monotonic_s()
            etag = self._created(path, _SAMPLE)
            created_s = self._runtime.monotonic_s()
            self._store.read(path)
            read_s = self._runtime.monotonic_s()
            self._store.replace(path, _SAMPLE, etag)
            swapped_s = self._runtime.monotonic_s()
            puts_s.append(created_s - start_s)
            gets_s.append(read_s - created_s)
            swaps_s.append(swapped_s - read_s)
        return _median_us(puts_s), _median_us(gets_s), _median_us(swaps_s)

    def _clock_difference_us(self) -> int:
        before_us = self._runtime.now_us()
        self._created("clock", b"")
        after_us = self._runtime.now_us()
        meta = self._store.head("clock")
        difference_us = 0 if meta is None else meta.last_modified_us - (before_us + after_us) // 2
        if abs(difference_us) > _CLOCK_DIFFERENCE_US_NOTED:
            seconds = difference_us / US_PER_S
            self._advice.append(f"set the clocks: the store's is {seconds:+.0f} s from this machine's; no data is lost")
        return difference_us

    def _check_delete(self) -> None:
        for _ in range(2):
            self._store.delete("create")
        gone = self._store.read("create") is None and self._store.head("create") is None
        self._note("a delete removes an object and can be repeated", "gone" if gone else "still there", passed=gone)


def _median_us(times_s: list[float]) -> int:
    return round(median(times_s) * US_PER_S)


def _shown(outcome: PutOutcome) -> str:
    match outcome:
        case Done():
            return "done"
        case Refused():
            return "refused"
        case Unknown(cause):
            return f"unknown: {cause}"


def _with_unquoted_etags(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query="&".join(filter(None, (parts.query, "etags=unquoted")))).geturl()


def _works_with_unquoted_etags(url: str, folder: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "s3" or "etags" in options_of_url(url):
        return False
    store = FolderStore(open_store(_with_unquoted_etags(url)), folder)
    found = store.get("replace")
    return isinstance(found, Versioned) and isinstance(store.replace("replace", b"2", found.etag), Done)
