"""The doctor passes a store that keeps its promises, and names each promise that a store breaks."""

from __future__ import annotations

import gzip
import http.client
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.stores import FaultyStore
from wal3_core import LogWriter, MemoryStore
from wal3_core.errors import UnavailableError
from wal3_core.fleet.identity import store_identity
from wal3_core.runtime import shared_runtime
from wal3_core.store.doctor import examine
from wal3_core.store.object_store import (
    Buffer,
    Done,
    Etag,
    NotModified,
    ObjectMeta,
    ObjectStore,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
)
from wal3_core.store.open_store import open_store

LISTED = "a list names what is replaced meanwhile"
ATOMIC = {"one of several racing creates is done", "racing swaps lose nothing"}


class CarelessStore(MemoryStore):
    """A store that applies every PUT, ignoring its condition, as some servers do."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="careless")

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Overwrite after a pause, so that concurrent calls race."""
        shared_runtime().sleep(0.002)
        super().delete(path)
        return super().create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Overwrite."""
        del etag
        return self.create(path, data)


class RacyStore(MemoryStore):
    """A store that compares versions and then writes, without a lock around both."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="racy")

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Compare, pause, overwrite."""
        found = self.get(path)
        if not isinstance(found, Versioned) or found.etag != etag:
            return super().replace(path, data, etag)
        shared_runtime().sleep(0.002)
        super().delete(path)
        return super().create(path, data)


class UnorderedStore(MemoryStore):
    """A store that lists out of order."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="unordered")

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """List backwards."""
        return reversed(list(super().list_objects(folder, start_after=start_after)))


class HidingStore(MemoryStore):
    """A store that does not list what is being replaced, as a directory on btrfs."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="hiding")
        self._moving: set[str] = set()

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Replace, hidden for a moment."""
        self._moving.add(path)
        shared_runtime().sleep(0.001)
        outcome = super().replace(path, data, etag)
        self._moving.discard(path)
        return outcome

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """List the rest."""
        listed = super().list_objects(folder, start_after=start_after)
        return iter([meta for meta in listed if meta.path not in self._moving])


class CaseFoldingStore(MemoryStore):
    """A store that ignores case in names."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="folding")

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write under the name in lower case."""
        return super().create(path.lower(), data)

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read the object with the name in lower case."""
        return super().read(path.lower(), start=start, length=length)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read the object with the name in lower case."""
        return super().get(path.lower(), if_none_match=if_none_match, length_max=length_max)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write under the name in lower case."""
        return super().replace(path.lower(), data, etag)


class LimitedStore(MemoryStore):
    """A store that takes one write of an object in a tenth of a second; Google Cloud Storage, R2: in a second."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="limited")
        self._written_s: dict[str, float] = {}
        self._guard = threading.Lock()

    def _limited(self, path: str) -> Unknown | None:
        with self._guard:
            now_s = shared_runtime().monotonic_s()
            if now_s - self._written_s.get(path, -1) < 0.1:
                return Unknown("the server answered 429 SlowDown", slow_down=True)
            self._written_s[path] = now_s
            return None

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write, if that is not too soon."""
        return self._limited(path) or super().create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write, if that is not too soon."""
        return self._limited(path) or super().replace(path, data, etag)


class CollidingStore(MemoryStore):
    """A store that now and then answers a PUT with 409, or not at all, whether it did it or not."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="colliding")
        self._chance = random.Random(1)

    def _answered(self, put: Callable[[], PutOutcome]) -> PutOutcome:
        match self._chance.randrange(6):
            case 0:
                return Refused()
            case 1:
                put()
                return Unknown("the connection broke")
            case _:
                return put()

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write, perhaps."""
        return self._answered(lambda: MemoryStore.create(self, path, data))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write, perhaps."""
        return self._answered(lambda: MemoryStore.replace(self, path, data, etag))


class CachedStore(MemoryStore):
    """A store behind a cache of JSON documents."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="cached")
        self._cached: dict[str, bytes | None] = {}

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read what was read before."""
        if not path.endswith(".json"):
            return super().read(path, start=start, length=length)
        return self._cached.setdefault(path, super().read(path))


class PackingStore(MemoryStore):
    """A store behind a proxy that compresses."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="packing")

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read packed bytes."""
        found = super().read(path, start=start, length=length)
        return None if found is None else gzip.compress(found)


class LateStore(MemoryStore):
    """A store whose clock is an hour behind."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="late")

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object by the late clock."""
        found = super().head(path)
        return None if found is None else ObjectMeta(path, found.size, found.last_modified_us - 3_600_000_000)


class DeadStore(MemoryStore):
    """A store that does not answer."""

    def __init__(self) -> None:
        super().__init__(shared_runtime(), name="dead")

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Time out."""
        del path, data
        return Unknown("timed out")


def failed(store: ObjectStore) -> set[str]:
    return {check.name for check in examine(store).checks if not check.passed}


@pytest.mark.slow
def test_sound_store_passes_and_is_left_as_it_was(store: ObjectStore) -> None:
    store.create("mine", b"1")

    report = examine(store)

    assert [check for check in report.checks if not check.passed] == []
    assert report.suitable
    assert report.advice == ()
    assert abs(report.clock_difference_us) < 2_500_000
    assert min(report.put_us, report.cas_us) > 0
    assert [meta.path for meta in store.list_objects("")] == ["mine"]
    assert store.list_folders("") == []


def test_store_that_ignores_conditions_is_named_unsuitable() -> None:
    report = examine(CarelessStore())

    # It may also be listed between its delete and its create.
    assert {check.name for check in report.checks if not check.passed} - {LISTED} == {
        "a second create is refused",
        "a replace of a missing object is refused",
        "a replace with a stale version is refused",
        *ATOMIC,
    }
    assert not report.suitable
    assert any("do not keep logs here" in line for line in report.advice)


def test_store_that_checks_without_a_lock_loses_racing_swaps() -> None:
    # It may also be listed between its delete and its create.
    assert failed(RacyStore()) - {LISTED} == {"racing swaps lose nothing"}


def test_store_that_does_not_list_what_is_being_replaced_is_detected() -> None:
    """A collection would not see a cursor that moves."""
    assert failed(HidingStore()) == {LISTED}


def test_store_that_lists_out_of_order_is_detected() -> None:
    assert failed(UnorderedStore()) == {"a list is in order of paths"}


def test_store_that_folds_case_is_detected() -> None:
    """On such a store two logs whose names differ in case would be one."""
    assert failed(CaseFoldingStore()) == {"names that differ in case are two objects"}


@pytest.mark.slow
def test_store_that_limits_writes_of_one_object_is_sound_and_its_rate_reported() -> None:
    """It was once said to break promises, and to expect unquoted ETags. The library waits, and so does this."""
    report = examine(LimitedStore())

    assert [check for check in report.checks if not check.passed] == []
    assert len(report.advice) == 1
    assert report.advice[0].startswith("the store limits the writes of one object: a log gets about ")


@pytest.mark.slow
def test_store_whose_answers_say_nothing_at_times_is_sound() -> None:
    report = examine(CollidingStore())

    assert [check for check in report.checks if not check.passed] == []
    assert [line.partition(" ")[2][:32] for line in report.advice] == ["PUTs got no answer that says what"[:32]]


def test_cache_on_the_way_is_detected_though_it_goes_by_names() -> None:
    report = examine(CachedStore())

    assert [check.name for check in report.checks if not check.passed] == ["a GET reads the last version"]
    assert report.advice[0].startswith("let nothing on the way answer from a cache")


def test_proxy_that_changes_what_is_read_is_the_only_finding() -> None:
    report = examine(PackingStore())

    assert [(check.name, check.passed) for check in report.checks] == [("a GET gives the bytes that were put", False)]
    assert [line[:51] for line in report.advice] == ["something between this machine and the store change"]


@pytest.mark.slow
def test_store_below_is_named_in_a_bucket(s3_url: str) -> None:
    below = f"{s3_url}/teams"
    with LogWriter.open_or_create(open_store(below), "orders") as writer:
        writer.append(b"x")
    store_identity(open_store(below), create=True)

    assert examine(open_store(s3_url)).advice == ("is this the right folder? Another store lies below it, in teams/",)


@pytest.mark.slow
def test_log_whose_pointers_are_not_rolled_is_named() -> None:
    store = FaultyStore(MemoryStore(shared_runtime()))
    store.fail("create", "/snapshot/", "denied", times=10**6)
    with LogWriter.open_or_create(store, "a") as writer:
        for number in range(120):
            writer.append(b"%d" % number)

    (advice,) = examine(store.inner).advice

    assert advice.startswith("log a: its manifest has 1")
    assert "rolls into snapshots fail" in advice


def test_file_system_without_hard_links_gets_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was once advised to make the file changeable."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)

    report = examine(open_store(tmp_path.as_uri()))

    assert not report.suitable
    assert "expected a file system with hard links, which a create needs, found none" in report.checks[0].found


def test_late_clock_is_reported_but_breaks_no_promise() -> None:
    report = examine(LateStore())

    assert report.suitable
    assert round(report.clock_difference_us / 1_000_000) == -3600
    assert any("-3600 s" in line for line in report.advice)


@pytest.mark.slow
def test_store_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="found it unknown: timed out"):
        examine(DeadStore())


class BareEtagServer(BaseHTTPRequestHandler):
    """A proxy of the S3 server that compares If-Match with the unquoted ETag, as radosgw does."""

    upstream = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        match = next((name for name in headers if name.lower() == "if-match"), None)
        if match is not None:
            # A quoted value matches no version here; an unquoted one is quoted for the server behind.
            headers[match] = '"0"' if headers[match].startswith('"') else f'"{headers[match]}"'
        connection = http.client.HTTPConnection(self.upstream, timeout=10)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        connection.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward  # noqa: N815 - the names http.server calls

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def bare_etag_url(s3_url: str, s3_endpoint: str) -> Iterator[str]:
    """URL of a store on a server that expects unquoted ETags."""
    handler = type("Handler", (BareEtagServer,), {"upstream": urlsplit(s3_endpoint).netloc})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"{s3_url}?endpoint=http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_server_that_expects_unquoted_etags_is_recognised_and_passes_as_advised(bare_etag_url: str) -> None:
    report = examine(open_store(bare_etag_url))

    advised = f"{bare_etag_url}&etags=unquoted"
    assert "a replace with the current version is done" in {check.name for check in report.checks if not check.passed}
    assert report.advice[0] == f"this server expects unquoted ETags: open it as {advised}"
    assert examine(open_store(advised)).suitable


@pytest.mark.slow
def test_bare_etag_server_accepts_only_unquoted_etags(bare_etag_url: str) -> None:
    quoted, bare = open_store(bare_etag_url), open_store(f"{bare_etag_url}&etags=unquoted")
    etag = quoted.create("a", b"1")
    assert isinstance(etag, Done)
    found = bare.get("a")
    assert isinstance(found, Versioned)

    assert not isinstance(quoted.replace("a", b"2", etag.etag), Done)
    assert isinstance(bare.replace("a", b"2", found.etag), Done)
