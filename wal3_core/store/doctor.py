"""Checks whether a store keeps the promises a log depends on, and measures its latency.

Works in a folder of its own, and removes it. Source: docs/protocol/stores.md, "Object store contract".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import TypeVar
from urllib.parse import urlsplit

from wal3_core.errors import LogError, UnavailableError, UnsuitableStoreError
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import MANIFEST, STORE_IDENTITY
from wal3_core.format.strict_json import JsonObject
from wal3_core.format.vacancy import manifest_or_vacancy
from wal3_core.options import UNROLLED_POINTERS, RetryOptions
from wal3_core.runtime import US_PER_S, Runtime, later, shared_runtime
from wal3_core.store.object_store import (
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
from wal3_core.store.open_store import open_store
from wal3_core.store.retrying import attempts, for_store, with_retries, within
from wal3_core.store.store_urls import options_of_url

T = TypeVar("T")

_RACERS = 8
_INCREMENTS = 10
_CREATE_ROUNDS = 10
# The length of the race on a slow store, of one swap a second; swaps acknowledged until then are checked.
_RACE_S_MAX = 20.0
# The time in which objects are replaced while a list is asked for again and again.
_LIST_RACE_S = 1.0
# The time in which a PUT without an outcome is sent again, and the pause of a racer that is to slow down.
_RETRY_S, _SLOWER_S = 5.0, 0.1
# The object that is replaced has a name as in a log: a cache on the way may know it by that.
_REPLACED = MANIFEST
_KEYS_CHECKED_MAX = 1000
_MOVED = ("moved/a", "moved/b", "moved/c", "moved/d")
_LATENCY_SAMPLES = 15
_SAMPLE = bytes(1024)
_CLOCK_DIFFERENCE_US_NOTED = 5_000_000
# A translation of a version into one of the same form that no object has.
_OTHER_DIGITS = str.maketrans("0123456789abcdef", "123456789abcdef0")
_LISTED = ("list/a-1", "list/a.1", "list/a/1", "list/a0", "list/b")


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: whether the store keeps it, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The result of ``examine``; latencies are medians of requests made one at a time, in microseconds.

    ``clock_difference_us`` is how far the store's clock is ahead of this process's, to about a second.
    """

    url: str
    checks: tuple[Check, ...]
    put_us: int = 0
    get_us: int = 0
    cas_us: int = 0
    clock_difference_us: int = 0
    advice: tuple[str, ...] = ()

    @property
    def suitable(self) -> bool:
        """Whether logs can live there."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        shown: JsonObject = {"url": self.url, "suitable": self.suitable}
        return shown | asdict(self)


def examine(
    store: ObjectStore, *, runtime: Runtime | None = None, progress: Callable[[str], None] | None = None
) -> DoctorReport:
    """Examine a store by some hundred small requests, and by what it answers in a second; ``progress`` gets each step.

    A broken promise is in the report; UnavailableError when the store does not answer at all.
    """
    runtime = runtime or shared_runtime()
    store = with_retries(store, runtime)
    folder = f".wal3-doctor-{runtime.token()}/"
    examination = _Examination(FolderStore(store, folder), runtime, progress or (lambda _: None))
    try:
        examination.reach()
    except UnsuitableStoreError as error:
        check = Check("an object is created", passed=False, found=str(error))
        return DoctorReport(url=store.url, checks=(check,))
    try:
        report = examination.run(store, folder)
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
        self._retry = within(for_store(RetryOptions(), store), _RETRY_S)
        # PUTs without an outcome, and those of them that were to slow down.
        self._unanswered = self._slowed = 0

    def reach(self) -> None:
        """Write a first object; UnavailableError when that fails."""
        self._created("first", b"")

    def run(self, whole: ObjectStore, folder: str) -> DoctorReport:
        """Run all checks and measurements in a folder of the whole store."""
        self._check_place(whole)
        times_us, clock_difference_us = (0, 0, 0), 0
        created = self._check_bytes()
        if created is not None:
            times_us, clock_difference_us = self._check_promises(whole.url, folder, created)
        if not self._curable and not all(check.passed for check in self._checks):
            self._advice.append("do not keep logs here: appends that were acknowledged could be lost")
        if self._unanswered > self._slowed:
            self._advice.append(
                f"{self._unanswered - self._slowed} PUTs got no answer that says what became of them: check the"
                f" network, and what is on the way; no record is lost, but appends wait"
            )
        put_us, get_us, cas_us = times_us
        return DoctorReport(
            url=whole.url,
            checks=tuple(self._checks),
            put_us=put_us,
            get_us=get_us,
            cas_us=cas_us,
            clock_difference_us=clock_difference_us,
            advice=tuple(self._advice),
        )

    def _check_promises(self, url: str, folder: str, created: Etag) -> tuple[tuple[int, int, int], int]:
        """Check what is worth checking where bytes are read as they were put; return latencies and the clock."""
        self._progress("conditions on PUT")
        self._check_create(created)
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
        measured = self._measure(self._put if swaps else self._once), self._clock_difference_us()
        self._check_delete()
        return measured

    def _note(self, name: str, found: str, *, passed: bool) -> None:
        self._checks.append(Check(name, passed, found))

    def _check_place(self, whole: ObjectStore) -> None:
        """Name another store in the folders below: the URL may be one folder too high. A directory is refused then.

        Beside it, logs whose manifests grow.
        """
        for key in [meta.path for meta in islice(whole.list_objects(""), _KEYS_CHECKED_MAX)]:
            if key.endswith(f"/{STORE_IDENTITY}"):
                self._advice.append(
                    f"is this the right folder? Another store lies below it, in {key.rpartition('/')[0]}/"
                )
                return
            if key.endswith(f"/{MANIFEST}"):
                self._check_rolls(whole, key)

    def _check_rolls(self, whole: ObjectStore, key: str) -> None:
        """Name a log whose pointers are not rolled into snapshots, if its manifest can be read."""
        with contextlib.suppress(LogError):
            found = whole.get(key)
            manifest = manifest_or_vacancy(found.data, what=key) if isinstance(found, Versioned) else None
            if isinstance(manifest, Manifest) and len(manifest.pointers) > UNROLLED_POINTERS:
                self._advice.append(
                    f"log {key.removesuffix(f'/{MANIFEST}')}: its manifest has {len(manifest.pointers)} pointers, so"
                    f" each append writes more and more: rolls into snapshots fail, and the writers' log lines say why"
                )

    def _created(self, path: str, data: bytes) -> Etag:
        outcome = self._put(path, data, None)
        if not isinstance(outcome, Done):
            message = f"store {self._store.url}: expected a new object to be written, found it {_shown(outcome)}"
            raise UnavailableError(message)
        return outcome.etag

    def _put(self, path: str, data: bytes, etag: Etag | None) -> PutOutcome:
        """Create an object, or replace a version, as patiently as the library: until what became of it is known."""
        for sent in attempts(self._retry, self._runtime):
            outcome = self._once(path, data, etag)
            if isinstance(outcome, Done):
                return outcome
            found = self._store.get(path)
            current = found.etag if isinstance(found, Versioned) else None
            # Where a single request was refused, the object has these bytes from elsewhere.
            was_sent = sent > 1 or isinstance(outcome, Unknown)
            if was_sent and isinstance(found, Versioned) and found.data == data and current != etag:
                return Done(found.etag)
            # Refused although its condition holds, it says nothing: a server may answer so to requests that collide.
            if isinstance(outcome, Refused) and current != etag:
                break
        return outcome

    def _once(self, path: str, data: bytes, etag: Etag | None) -> PutOutcome:
        outcome = self._store.create(path, data) if etag is None else self._store.replace(path, data, etag)
        if isinstance(outcome, Unknown):
            self._unanswered += 1
            self._slowed += outcome.slow_down
        return outcome

    def _check_bytes(self) -> Etag | None:
        """Return the version of the object that is created; None if it is read as other bytes, as from a proxy."""
        etag, found = self._created("create", b"first"), self._store.read("create")
        self._note("a GET gives the bytes that were put", repr((found or b"")[:20]), passed=found == b"first")
        if found == b"first":
            return etag
        self._curable = True
        self._advice.append(
            "something between this machine and the store changes what is read, as a proxy that compresses: let it pass"
            " objects as they are, then examine the store again"
        )
        return None

    def _check_create(self, etag: Etag) -> None:
        second = self._put("create", b"second", None)
        kept = self._store.read("create") == b"first"
        found = f"{_shown(second)}, the object {'kept' if kept else 'overwritten'}"
        self._note("a second create is refused", found, passed=kept and not isinstance(second, Done))
        missing = self._put("missing", b"1", etag)
        self._note("a replace of a missing object is refused", _shown(missing), passed=not isinstance(missing, Done))

    def _check_replace(self, url: str, folder: str) -> bool:
        """Return whether objects can be replaced at all."""
        old = self._created(_REPLACED, b"1")
        # A cache on the way has it now.
        self._store.read(_REPLACED)
        replaced = self._put(_REPLACED, b"2", old)
        done = isinstance(replaced, Done)
        self._note("a replace with the current version is done", _shown(replaced), passed=done)
        if not done:
            # The old version may still be current, so a stale one cannot be tried.
            self._advise_on_etags(url, folder, old)
            return False
        fresh = self._store.read(_REPLACED) == b"2"
        found = "the last bytes written" if fresh else "earlier bytes, as from a cache on the way"
        self._note("a GET reads the last version", found, passed=fresh)
        if not fresh:
            self._advice.append("let nothing on the way answer from a cache: a reader would miss what was acknowledged")
        stale = self._put(_REPLACED, b"3", old)
        kept = self._store.read(_REPLACED) == b"2"
        found = f"{_shown(stale)}, the object {'kept' if kept else 'overwritten, or not read as it is'}"
        passed = not isinstance(stale, Done) and (kept or not fresh)
        self._note("a replace with a stale version is refused", found, passed=passed)
        return True

    def _advise_on_etags(self, url: str, folder: str, etag: Etag) -> None:
        if 'W/\\"' in etag:
            self._curable = True
            self._advice.append(
                "this server, or a proxy before it, answers with weak ETags (W/), which name no version: end that, as"
                " by switching off the proxy's compression"
            )
        elif _works_with_unquoted_etags(url, folder):
            self._curable = True
            self._advice.append(f"this server expects unquoted ETags: open it as {_with_unquoted_etags(url)}")

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
        other = self._put("case/NAME", b"large", None)
        kept = self._store.read("case/name") == b"small" and isinstance(other, Done)
        self._note("names that differ in case are two objects", f"the second {_shown(other)}", passed=kept)

    def _check_racing_creates(self) -> None:
        acknowledged = lost = 0
        for number in range(_CREATE_ROUNDS):
            path = f"race/{number}"
            outcomes = self._race([partial(self._store.create, path, b"%d" % racer) for racer in range(_RACERS)])
            present = self._store.read(path)
            winners = [b"%d" % racer for racer, outcome in enumerate(outcomes) if isinstance(outcome, Done)]
            acknowledged += len(winners)
            lost += sum(winner != present for winner in winners)
        found = f"{_RACERS} writers, {_CREATE_ROUNDS} objects: {acknowledged} acknowledged, {lost} of them lost"
        self._note("one of several racing creates is done", found, passed=lost == 0 and acknowledged > 0)

    def _check_racing_swaps(self) -> None:
        self._created("swap", b"")
        slowed, began_s = self._slowed, self._runtime.monotonic_s()
        limit_s = began_s + _RACE_S_MAX
        swapped = self._race([partial(self._swaps, racer, limit_s) for racer in range(_RACERS)])
        acknowledged = [word for words in swapped for word in words]
        present = (self._store.read("swap") or b"").split()
        lost = len(acknowledged) - sum(word in present for word in acknowledged)
        found = f"{_RACERS} writers: {len(acknowledged)} acknowledged, {lost} of them lost"
        self._note("racing swaps lose nothing", found, passed=lost == 0 and bool(acknowledged))
        if self._slowed > slowed:
            rate = len(acknowledged) / (self._runtime.monotonic_s() - began_s)
            self._advice.append(
                f"the store limits the writes of one object: a log gets about {rate:.1f} commits a second, however many"
                f" records each has, and an append waits for the next; logs do not share this limit"
            )

    def _swaps(self, racer: int, limit_s: float) -> list[bytes]:
        """Add a racer's own words to the object; return those that were acknowledged."""
        acknowledged: list[bytes] = []
        attempt = 0
        while len(acknowledged) < _INCREMENTS and self._runtime.monotonic_s() < limit_s:
            attempt += 1
            # Never the same twice: one whose outcome is unknown may already be stored.
            word = b"%d.%d" % (racer, attempt)
            if self._swap(word):
                acknowledged.append(word)
        return acknowledged

    def _swap(self, word: bytes) -> bool:
        found = self._store.get("swap")
        if not isinstance(found, Versioned):
            return False
        outcome = self._once("swap", found.data + word + b" ", found.etag)
        if isinstance(outcome, Unknown):
            self._runtime.sleep(_SLOWER_S * self._runtime.jitter())
        return isinstance(outcome, Done)

    def _check_racing_lists(self) -> None:
        """Check that a list names what is replaced meanwhile, as cursors are: what they keep would be collected."""
        moving: list[Callable[[], list[int]]]
        moving = [partial(self._moves, path, self._created(path, b"")) for path in _MOVED]
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

    def _moves(self, path: str, etag: Etag) -> list[int]:
        """Replace an object over and over; return the numbers of the replaces that were done."""
        done: list[int] = []
        limit_s = self._runtime.monotonic_s() + _LIST_RACE_S
        found: Done | Versioned | NotModified | None = Done(etag)
        while isinstance(found, Done | Versioned) and self._runtime.monotonic_s() < limit_s:
            outcome = self._once(path, b"%d" % len(done), found.etag)
            done += [len(done)] * isinstance(outcome, Done)
            found = outcome if isinstance(outcome, Done) else self._store.get(path)
        return done

    def _race(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        futures = [later(self._runtime, task, share_of(self._store)) for task in tasks]
        for future in futures:
            # All end before an error is raised: none must write after the cleaning.
            with contextlib.suppress(LogError):
                self._runtime.wait(future)
        return [self._runtime.wait(future) for future in futures]

    def _measure(self, replace: Callable[[str, bytes, Etag], PutOutcome]) -> tuple[int, int, int]:
        """Return the medians of a create, a read and a swap."""
        times_s: list[tuple[float, ...]] = []
        for number in range(_LATENCY_SAMPLES):
            path, began_s = f"latency/{number}", self._runtime.monotonic_s()
            etag = self._created(path, _SAMPLE)
            created_s = self._runtime.monotonic_s()
            self._store.read(path)
            read_s = self._runtime.monotonic_s()
            # Other bytes: of the same ones, some servers make the same version.
            replace(path, _SAMPLE[1:], etag)
            times_s.append((created_s - began_s, read_s - created_s, self._runtime.monotonic_s() - read_s))
        put_us, get_us, cas_us = (round(median(each) * US_PER_S) for each in zip(*times_s, strict=True))
        return put_us, get_us, cas_us

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
    found = store.get(_REPLACED)
    return isinstance(found, Versioned) and isinstance(store.replace(_REPLACED, b"2", found.etag), Done)
