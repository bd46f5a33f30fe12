"""Stores used by several processes: many at once, killed at any moment, on a full or forbidden disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.children import child
from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.store.object_store import Done, ObjectStore, PutOutcome, Unknown, Versioned
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WRITERS = 16
RAISES = 10
ATTEMPTS_MAX = 10_000
KILLS = 20
ANSWER_S_MAX = 60
LINES = 5000
DAY_S = 24 * 60 * 60
UNPRIVILEGED = 65534
FILE_BYTES_MAX = 64 * 1024


def answer(connection: Connection) -> Any:  # noqa: ANN401 - each kind of child sends another type
    assert connection.poll(ANSWER_S_MAX), f"no answer in {ANSWER_S_MAX} s"
    return connection.recv()


def answers_left(connection: Connection) -> list[Any]:
    """Return the messages that a process sent before it ended."""
    found = []
    with contextlib.suppress(EOFError):
        while connection.poll(ANSWER_S_MAX):
            found.append(connection.recv())
    return found


def content(number: int) -> bytes:
    """Make a version whose every line contains its number, so that a torn one is detected."""
    return f"{number:012d}\n".encode() * LINES


def number_in(data: bytes | None) -> int:
    """Return the number of a version, which must be whole; 0 for None."""
    if data is None:
        return 0
    number = int(data[:12]) if data[:12].isdigit() else 0
    assert data == content(number), f"version {number} is torn"
    return number


def put(store: ObjectStore, path: str, data: bytes) -> PutOutcome:
    """Create the object, or replace the present version."""
    found = store.get(path)
    return store.replace(path, data, found.etag) if isinstance(found, Versioned) else store.create(path, data)


def staged(url: str) -> list[Path]:
    return sorted((Path(url.removeprefix("file://")) / ".wal3" / "staging").iterdir())


def raise_counter(connection: Connection, url: str, name: str) -> None:
    store = open_store(url)
    connection.send("ready")
    connection.recv()
    acked = unknown = 0
    for _ in range(ATTEMPTS_MAX):
        found = store.get("counter.json")
        assert isinstance(found, Versioned)
        counts = json.loads(found.data)
        counts[name] = counts.get(name, 0) + 1
        outcome = store.replace("counter.json", json.dumps(counts).encode(), found.etag)
        acked += isinstance(outcome, Done)
        unknown += isinstance(outcome, Unknown)
        if acked == RAISES:
            break
    connection.send((acked, unknown))


@pytest.mark.slow
def test_counter_raised_by_cas_from_many_processes_loses_no_update(store_url: str) -> None:
    store = open_store(store_url)
    assert isinstance(store.create("counter.json", b"{}"), Done)
    names = [f"writer{number}" for number in range(WRITERS)]

    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(child(raise_counter, store_url, name))[1] for name in names]
        for connection in connections:
            assert answer(connection) == "ready"
        for connection in connections:
            connection.send("go")
        answers = {name: answer(connection) for name, connection in zip(names, connections, strict=True)}

    counts = json.loads(store.read("counter.json") or b"")
    print(f"answers (acked, unknown): {answers}; stored: {counts}")
    for name in names:
        acked, unknown = answers[name]
        assert acked == RAISES
        assert acked <= counts[name] <= acked + unknown
    if all(unknown == 0 for _, unknown in answers.values()):
        assert sum(counts.values()) == WRITERS * RAISES


def keep_writing(connection: Connection, url: str) -> None:
    store = open_store(url)
    number = number_in(store.read("log/document"))
    while True:
        number += 1
        assert isinstance(put(store, "log/document", content(number)), Done)
        connection.send(("document", number))
        assert isinstance(store.create(f"log/step/{number:06d}", content(number)), Done)
        connection.send(("step", number))


@pytest.mark.slow
def test_kill_at_a_random_moment_tears_and_loses_nothing(local_url: str) -> None:
    store = open_store(local_url)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    last = 0
    steps: set[str] = set()

    for _ in range(KILLS):
        with child(keep_writing, local_url) as (process, connection):
            # A first write shows that no lock of a dead process is held.
            acks = [answer(connection) for _ in range(chance.randint(1, 6))]
            time.sleep(chance.uniform(0, 0.01))
            process.kill()
            process.join(60)
            acks += answers_left(connection)
            assert process.exitcode == -signal.SIGKILL
        acked = max([number for kind, number in acks if kind == "document"])
        steps |= {f"log/step/{number:06d}" for kind, number in acks if kind == "step"}

        assert last < acked
        last = number_in(store.read("log/document"))
        assert last in {acked, acked + 1}
        assert steps <= {meta.path for meta in store.list_objects("log/step/")}
    for meta in store.list_objects("log/step/"):
        assert number_in(store.read(meta.path)) == int(meta.path[-6:])
    assert last > KILLS


CRASH_POINTS = {"mkstemp", "mkdir", "open", "write", "flush", "fchmod", "fsync", "flock", "link", "rename", "unlink"}


def write_until(connection: Connection, url: str, kill_at: int) -> None:
    """Create and replace; die just before or just after a system call, at event number ``kill_at``."""
    store = open_store(url)
    count = 0

    def crash(_frame: object, event: str, called: object) -> None:
        nonlocal count
        if event in {"c_call", "c_return"} and getattr(called, "__name__", "") in CRASH_POINTS:
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    for number in (1, 2):
        sys.setprofile(crash)
        outcome = put(store, "log/document", content(number))
        sys.setprofile(None)
        assert isinstance(outcome, Done)
        connection.send(number)


@pytest.mark.slow
@pytest.mark.repeat
def test_kill_at_every_call_of_the_system_leaves_the_old_version_or_the_new(tmp_path: Path) -> None:
    point = exit_code = 0
    outcomes = set()
    while exit_code != 0 or point == 0:
        point += 1
        url = (tmp_path / f"{point}").as_uri()
        with child(write_until, url, point) as (process, connection):
            process.join(ANSWER_S_MAX)
            assert process.exitcode in {0, -signal.SIGKILL}
            exit_code = process.exitcode
            acked = len(answers_left(connection))

        store = open_store(url)
        stored = number_in(store.read("log/document"))
        outcomes.add((acked, stored))
        assert stored in {acked, acked + 1}, f"killed at {point}"
        assert [meta.path for meta in store.list_objects("")] == ["log/document"] * (stored > 0)
        assert isinstance(put(store, "log/document", content(3)), Done)
        assert number_in(store.read("log/document")) == 3

    # All cases occurred: not written, written but not acknowledged, acknowledged, and the same for the replace.
    assert outcomes == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}


def test_staging_files_are_swept_when_older_than_a_day_and_kept_when_younger(local_url: str) -> None:
    assert isinstance(open_store(local_url).create("a", b"1"), Done)
    staging = Path(local_url.removeprefix("file://")) / ".wal3" / "staging"
    for name, age_s in {"old": DAY_S + 3600, "ancient": 400 * DAY_S, "young": DAY_S - 3600, "new": 0}.items():
        (staging / name).write_bytes(b"left behind")
        os.utime(staging / name, (time.time() - age_s,) * 2)

    open_store(local_url).read("a")
    assert len(staged(local_url)) == 4
    assert isinstance(open_store(local_url).create("b", b"2"), Done)

    assert [path.name for path in staged(local_url)] == ["new", "young"]


def attempt(put: Callable[[], PutOutcome]) -> tuple[type, str]:
    """Return the class of a PUT's outcome or error, and its text."""
    try:
        outcome = put()
    except UnavailableError as error:
        return type(error), str(error)
    # Subclasses say the same.
    return Done if isinstance(outcome, Done) else type(outcome), repr(outcome)


def write_too_much(connection: Connection, url: str) -> None:
    store = open_store(url)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    connection.send(attempt(lambda: put(store, "log/document", bytes(2 * FILE_BYTES_MAX))))
    connection.send(attempt(lambda: store.create("log/other", bytes(2 * FILE_BYTES_MAX))))
    connection.send(attempt(lambda: store.create("log/small", b"fits")))


def test_file_too_large_for_its_limit_is_an_error_and_nothing_is_half_written(local_url: str) -> None:
    store = open_store(local_url)
    assert isinstance(store.create("log/document", b"old"), Done)

    with child(write_too_much, local_url) as (_, connection):
        replaced, created, small = answer(connection), answer(connection), answer(connection)

    for kind, message in (replaced, created):
        assert kind is StoreDeniedError
        assert local_url.removeprefix("file://") in message
        assert "File too large" in message
    assert small[0] is Done
    assert {meta.path: store.read(meta.path) for meta in store.list_objects("")} == {
        "log/document": b"old",
        "log/small": b"fits",
    }
    assert staged(local_url) == []


FILL = textwrap.dedent(
    """
    import json, pathlib, subprocess, sys
    from wal3_core.errors import UnavailableError
    from wal3_core.store.backends.local import LocalStore
    from wal3_core.store.object_store import Done
    def attempt(put):
        try:
            outcome = put()
            return "Done" if isinstance(outcome, Done) else type(outcome).__name__, ""
        except UnavailableError as error:
            return type(error).__name__, str(error)
    root = pathlib.Path(sys.argv[1])
    store = LocalStore(root)
    small, large = b"o" * 100_000, b"n" * 1_000_000
    etag = store.create("log/document", small).etag
    found = {
        "replace": attempt(lambda: store.replace("log/document", large, etag)),
        "create": attempt(lambda: store.create("log/other", large)),
        "kept": store.read("log/document") == small,
        "again": attempt(lambda: store.replace("log/document", small[1:], etag)),
    }
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)
    found["read-only"] = attempt(lambda: store.create("log/other", b"1"))
    found["objects"] = {meta.path: meta.size for meta in store.list_objects("")}
    found["staged"] = [path.name for path in (root / ".wal3" / "staging").iterdir()]
    print(json.dumps(found))
    """
)


def in_small_file_system(root: Path) -> list[str]:
    """Return a prefix that runs a command with a private file system of 512 KiB at ``root``."""
    unshare = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    return [*unshare, "sh", "-c", 'mount -t tmpfs -o size=512k wal3 "$0" && exec "$@"', str(root)]


@pytest.mark.slow
def test_full_device_and_read_only_mount_are_denials_and_nothing_is_half_written(tmp_path: Path) -> None:
    prefix = in_small_file_system(tmp_path)
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False, timeout=600).returncode != 0:
        pytest.skip(
            "no file system of our own can be mounted here: run as root (in a container: --cap-add SYS_ADMIN),"
            " or allow user namespaces (sysctl -w kernel.unprivileged_userns_clone=1)"
        )

    output = subprocess.run(
        [*prefix, sys.executable, "-c", FILL, tmp_path], check=True, stdout=subprocess.PIPE, timeout=600
    ).stdout

    found = json.loads(output)
    for kind in ("replace", "create"):
        name, message = found[kind]
        assert name == "StoreDeniedError"
        assert message.startswith(f"store {tmp_path}: [Errno 28] No space left on device: log/")
        assert message.endswith(" bytes: free some space on the device")
    assert found["kept"]
    assert found["again"] == ["Done", ""]
    assert found["read-only"][0] == "StoreDeniedError"
    assert str(tmp_path) in found["read-only"][1]
    assert found["read-only"][1].endswith("mount the file system writable")
    assert found["objects"] == {"log/document": 99_999}
    assert found["staged"] == []


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)


def write_as_nobody(connection: Connection, url: str) -> None:
    store = open_store(url)
    become_nobody()
    connection.send(attempt(lambda: store.create("log/folder/other", b"1")))
    connection.send(attempt(lambda: put(store, "log/document", b"new")))


@pytest.fixture
def reachable_root() -> Iterator[Path]:
    """A directory that every user can reach; pytest's own are private to this user."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        yield root
        for folder, _, _ in os.walk(root):
            Path(folder).chmod(0o755)


@pytest.mark.parametrize(
    ("forbidden", "mode"),
    [
        ("", 0o555),
        (".wal3/staging", 0o555),
        ("log", 0o555),
        ("log", 0o000),
    ],
)
def test_directory_that_may_not_be_written_is_a_denial_and_changes_nothing(
    reachable_root: Path, forbidden: str, mode: int
) -> None:
    store = open_store(reachable_root.as_uri())
    assert isinstance(store.create("log/document", b"old"), Done)
    for path in reachable_root.rglob("*"):
        path.chmod(0o777)
    if not forbidden:
        shutil.rmtree(reachable_root / ".wal3")
    (reachable_root / forbidden).chmod(mode)

    with child(write_as_nobody, reachable_root.as_uri()) as (_, connection):
        outcomes = [answer(connection), answer(connection)]

    (reachable_root / forbidden).chmod(0o755)
    for kind, message in outcomes:
        assert kind is StoreDeniedError, message
        assert message.startswith(f"store {reachable_root}: ")
        assert message.endswith("give this user access")
    assert {meta.path: store.read(meta.path) for meta in store.list_objects("")} == {"log/document": b"old"}
