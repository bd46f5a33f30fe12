"""A driver is stopped between its tasks' end and its install, and thought dead; others go on, and it wakes up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.conftest import Machines, printed, submitting
from tests.cluster.spark_cluster import wait_until
from tests.cluster.zombie_program import PER_BATCH, STREAMS, WAIT_S
from wal3_core import LogReader, LogWriter, destroy, seal
from wal3_core.store.object_store import ObjectStore

PROGRAM = Path(__file__).parent / "zombie_program.py"
# The others end with the batch that is staged twice.
BATCHES = {"same": 3}
WRITTEN = [b"%d" % number for number in range(100)]
# What each query of the first driver says when it goes on. Spark refuses its checkpoint when the logs have let it pass.
SAID = {
    "same": r"UnknownDurabilityError: .* expected number 2 of .* found number 1",
    "last": "CONCURRENT_STREAM_LOG_UPDATE",
    "other": r"NotDurableError: .* 'batch 1 .* 10 records, setsum .* give other records another name",
    "allowed": "CONCURRENT_STREAM_LOG_UPDATE",
    "sealed": "SealedError: .*/out/sealed: sealed by",
    "replaced": r"LogReplacedError: .*/out/replaced: .* under its name",
}


class Driver:
    """A driver: a shell, a JVM and Python, which are stopped and killed together, as a machine is."""

    def __init__(self, machines: Machines, folder: Path, name: str, *arguments: str) -> None:
        command, environment = submitting(machines, PROGRAM, name, *arguments, **{"spark.cores.max": "1"})
        self._said, self._log = folder / f"{name}.out", folder / f"{name}.err"
        with self._said.open("wb") as said, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=said, stderr=log, start_new_session=True
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(self._process.pid, number)

    def outcomes(self) -> dict[str, str | None]:
        """Return what it says at its end of each query and write."""
        assert self._process.wait(WAIT_S) == 0, self._log.read_text()[-5000:]
        (found,) = printed(self._said.read_text().splitlines()).values()
        return dict(found)

    def wait_for(self, paths: Iterable[Path]) -> None:
        """Wait for files, as long as it runs."""
        for path in paths:
            wait_until(lambda: path.exists() or self._process.poll() is not None, str(path), deadline_s=WAIT_S)  # noqa: B023 - called within the turn
            assert path.exists(), self._log.read_text()[-5000:]

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
            self._process.wait(60)


@contextmanager
def driver(machines: Machines, folder: Path, name: str, *arguments: str) -> Iterator[Driver]:
    started = Driver(machines, folder, name, *arguments)
    try:
        yield started
    finally:
        started.end()


def bodies(store: ObjectStore, log: str) -> list[bytes]:
    return [record.body or b"" for record in LogReader.open(store, log).records()]


def numbers(low: int, high: int, by: str = "") -> list[bytes]:
    return [f"{number}{by and ' of '}{by}".encode() for number in range(low, high)]


def fill(store: ObjectStore) -> None:
    for name in STREAMS:
        with LogWriter.open_or_create(store, f"in/{name}") as writer:
            writer.append_many(numbers(0, BATCHES.get(name, 2) * PER_BATCH))
        LogWriter.create(store, f"out/{name}")
    for log in ("out/write", "out/other-write"):
        LogWriter.create(store, log)


def test_driver_that_wakes_up_with_a_staged_batch_doubles_and_loses_nothing(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    fill(store)
    committed = [
        tmp_path / f"checkpoint-{name}" / "commits" / f"{BATCHES.get(name, 2) - 1}"
        for name in STREAMS
        if name != "sealed"
    ]

    with ExitStack() as drivers:
        first = drivers.enter_context(driver(machines, tmp_path, "A", store.url, str(tmp_path), "1", "write"))
        first.wait_for(tmp_path / f"A-{name}" for name in (*STREAMS, "write"))
        first.send(signal.SIGSTOP)
        seal(store, "out/sealed", reason="test")
        destroy(store, "out/replaced")
        LogWriter.create(store, "out/replaced")
        # It does the batch, and dies with the next one, if there is one.
        second = drivers.enter_context(driver(machines, tmp_path, "B", store.url, str(tmp_path), "2", "no write"))
        second.wait_for([tmp_path / f"B-{name}" for name in BATCHES])
        second.wait_for(path for path in committed if path.name == "1")
        second.send(signal.SIGKILL)
        third = drivers.enter_context(driver(machines, tmp_path, "C", store.url, str(tmp_path), "-1", "write"))
        third.wait_for([*committed, tmp_path / "C-write"])
        # Both have staged the write, and install it at once.
        for name in ("A", "C"):
            (tmp_path / f"go-{name}").touch()
        first.send(signal.SIGCONT)
        woken, going_on = first.outcomes(), third.outcomes()

    for name in ("same", "last"):
        assert bodies(store, f"out/{name}") == numbers(0, BATCHES.get(name, 2) * PER_BATCH), name
    for name in ("other", "allowed"):
        assert bodies(store, f"out/{name}") == [*numbers(0, 10, "A"), *numbers(10, 20, "B")], name
    assert bodies(store, "out/sealed") == numbers(0, 10)
    # The first batch went with the log.
    assert bodies(store, "out/replaced") == numbers(10, 20)
    for name, said in SAID.items():
        assert re.search(said, woken[name] or "", re.DOTALL), (name, woken[name])
    assert {name for name, error in going_on.items() if name in STREAMS and error} == {"sealed"}
    check_written(store, woken, going_on)


def check_written(store: ObjectStore, *outcomes: dict[str, str | None]) -> None:
    """Fail unless each row of the writes is there once; of other rows under one name, those of one driver."""
    assert bodies(store, "out/write") == WRITTEN
    # One that is overtaken while it installs may not know that its rows are there; its error says to repeat the write.
    assert all(re.search("None|repeat it|CursorConflictError", str(each["write"])) for each in outcomes), outcomes
    others = [[f"{number} of {name}".encode() for number in range(100)] for name in ("A", "C")]
    assert bodies(store, "out/other-write") in others
    assert any(each["other-write"] for each in outcomes), outcomes
