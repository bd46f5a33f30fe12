"""A store that refuses access or space: the error comes at once and names the cause, and the writer recovers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.children import await_word, child
from tests.processes.fault_proxy import Fault, FaultProxy
from tests.processes.journal import Journal, check_promises, read_journals
from tests.processes.workers import LOG
from wal3_core import LogReader, LogWriter, NotDurableError, StoreDeniedError, WriterOptions, open_store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROOT = Path(__file__).parent.parent.parent
UNPRIVILEGED = 65534
FILE_BYTES_MAX = 32 * 1024
# About 60 kB, incompressible.
BULK = 200
ALWAYS = float("inf")


def phase(journal: Journal, writer: LogWriter, name: str, *, count: int = 1) -> list[str]:
    return [journal.append(f"{name}/{index}", count, writer.append_many) for index in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "target", "outcome"),
    [
        (Fault.DENY, "/log/", "refused"),
        (Fault.DENY, "MANIFEST", "refused"),
        (Fault.FULL, "/log/", "refused"),
        # To a client, 507 is a failure of the server like others: it may have been applied.
        (Fault.FULL, "MANIFEST", "unknown"),
    ],
)
def test_refusing_bucket_is_reported_at_once_and_the_writer_continues_once_healed(
    proxied_url: str, proxy: FaultProxy, journals: Path, fault: Fault, target: str, outcome: str
) -> None:
    store, journal = open_store(proxied_url), Journal(journals / "only")
    with LogWriter.open_or_create(store, LOG, options=WriterOptions(delivery_timeout_s=0.5)) as writer:
        before = phase(journal, writer, "before")
        proxy.fail(fault, "PUT", target, times=ALWAYS)
        during = phase(journal, writer, "during")
        refusals = proxy.fired[fault]
        proxy.heal()
        after = phase(journal, writer, "after")

    attempts = read_journals(journals)
    assert before == after == ["acked"] * 3
    assert during == [outcome] * 3
    named = "AccessDenied" if fault is Fault.DENY else "InsufficientStorage"
    assert all(named in attempts[f"during/{index}"].why for index in range(3))
    # A denied request is not retried; the other is, as long as the append has time.
    assert refusals == 3 if fault is Fault.DENY else 3 < refusals < 100
    check_promises(store, LOG, attempts)


def denied_append(url: str, proxy: FaultProxy, target: str) -> NotDurableError:
    with LogWriter.open_or_create(open_store(url), LOG) as writer:
        proxy.fail(Fault.DENY, "PUT", target, times=ALWAYS)
        with pytest.raises(NotDurableError) as caught:
            writer.append(b"denied")
    return caught.value


def test_denied_upload_names_the_answer_of_the_server(proxied_url: str, proxy: FaultProxy) -> None:
    assert "AccessDenied" in str(denied_append(proxied_url, proxy, "/log/"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/log/", "MANIFEST"])
def test_denied_append_has_the_denial_for_its_cause(proxied_url: str, proxy: FaultProxy, target: str) -> None:
    assert isinstance(denied_append(proxied_url, proxy, target).__cause__, StoreDeniedError)


def test_bucket_without_access_denies_opening_and_reading_by_name(proxied_url: str, proxy: FaultProxy) -> None:
    store = open_store(proxied_url)
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"kept")
    proxy.fail(Fault.DENY, "GET", times=ALWAYS)

    with pytest.raises(StoreDeniedError, match="AccessDenied"):
        LogWriter.open(store, LOG)
    with pytest.raises(StoreDeniedError, match="AccessDenied"):
        LogReader.open(store, LOG)

    assert proxy.fired[Fault.DENY] == 2
    proxy.heal()
    assert [record.body for record in LogReader.open(store, LOG).records()] == [b"kept"]


def serve(connection: Connection, url: str, journals: Path) -> None:
    """Append on request, under a limit on file sizes, as an unprivileged user if possible."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
    journal = Journal(journals / "only")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LogWriter.open_or_create(open_store(url), LOG) as writer:
        while (order := connection.recv()) is not None:
            name, file_bytes_max = order
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max or hard, hard))
            connection.send(("outcomes", phase(journal, writer, name, count=BULK)))


def order(connection: Connection, name: str, *, file_bytes_max: int | None = None) -> object:
    connection.send((name, file_bytes_max))
    return await_word(connection, "outcomes")


@pytest.fixture
def reachable_root() -> Iterator[Path]:
    """A directory that an unprivileged user can reach and owns; pytest's own belong to this user."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "journals").mkdir()
        for path in (root, root / "journals"):
            path.chmod(0o755)
            if os.geteuid() == 0:
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        yield root


def set_mode(root: Path, mode: int) -> None:
    for folder in [path for path in (root, *root.rglob("*")) if path.is_dir()]:
        folder.chmod(mode)


@pytest.mark.slow
def test_read_only_directory_is_reported_and_the_writer_continues_once_writable(
    reachable_root: Path,
) -> None:
    folder, journals = reachable_root / "store", reachable_root / "journals"

    with child(serve, folder.as_uri(), journals) as (_, connection):
        before = order(connection, "before")
        set_mode(folder, 0o555)
        during = order(connection, "during")
        set_mode(folder, 0o755)
        after = order(connection, "after")

    attempts = read_journals(journals)
    assert before == after == ["acked"] * 3
    assert during == ["refused"] * 3
    assert attempts["during/0"].why.startswith("StoreDeniedError: ")
    assert attempts["during/0"].why.endswith("give this user access")
    check_promises(open_store(folder.as_uri()), LOG, attempts)


@pytest.mark.slow
def test_limit_on_file_size_is_reported_and_the_writer_continues_when_it_is_raised(reachable_root: Path) -> None:
    folder, journals = reachable_root / "store", reachable_root / "journals"

    with child(serve, folder.as_uri(), journals) as (_, connection):
        before = order(connection, "before")
        during = order(connection, "during", file_bytes_max=FILE_BYTES_MAX)
        after = order(connection, "after")

    attempts = read_journals(journals)
    assert before == after == ["acked"] * 3
    assert during == ["refused"] * 3
    assert attempts["during/0"].why.startswith("StoreDeniedError: ")
    assert "ulimit -f" in attempts["during/0"].why
    check_promises(open_store(folder.as_uri()), LOG, attempts)


def in_small_file_system(folder: Path) -> list[str]:
    """The prefix of a command that sees a file system of 2 MiB at ``folder``, which no other process sees."""
    unshare = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    return [*unshare, "sh", "-c", 'mount -t tmpfs -o size=2m wal3 "$0" && exec "$@"', str(folder)]


@pytest.mark.slow
def test_full_and_read_only_disks_are_reported_and_the_writer_continues_with_space(
    tmp_path: Path, journals: Path
) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    prefix = in_small_file_system(mounted)
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False, timeout=600).returncode != 0:
        pytest.skip(
            "no file system of our own can be mounted here: run as root (in a container: --cap-add SYS_ADMIN),"
            " or allow user namespaces (sysctl -w kernel.unprivileged_userns_clone=1)"
        )

    output = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.processes.full_disk", mounted, journals],
        check=True,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=600,
    ).stdout

    found = json.loads(output)
    full, read_only = found["full/0"][1], found["read-only/0"][1]
    outcomes = {name.split("/")[0]: outcome for name, (outcome, _) in found.items()}
    assert outcomes == {
        "before": "acked",
        "full": "refused",
        "freed": "acked",
        "read-only": "refused",
        "after": "acked",
    }
    assert full.startswith("StoreDeniedError: ")
    assert "No space left on device: " in full
    assert full.endswith(" bytes: free some space on the device")
    assert read_only.startswith("StoreDeniedError: ")
    assert read_only.endswith("mount the file system writable")
