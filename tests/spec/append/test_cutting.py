"""When a batch is cut, on a store whose requests take known times, in simulated time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from itertools import pairwise

import pytest

from tests.faults.simulator import SimProcess, Simulation
from tests.stores import FaultyStore
from wal3_core import LogPosition, LogWriter, MemoryStore, WriterOptions

CALLERS = 16
LASTS_S = 5.0


class Timed:
    """A writer whose PUTs and CASs take so many seconds; when each of them ended, and what each append waited."""

    def __init__(self, put_s: float, cas_s: float) -> None:
        self._simulation = Simulation(1)
        self._process = SimProcess(self._simulation, "writer", steady=True)
        self._store = FaultyStore(MemoryStore(self._process))
        self._store.before = self._take
        self._took_s = {"create": put_s, "replace": cas_s}
        self.ended_s: dict[str, list[float]] = {"create": [], "replace": []}
        self.waits_s: list[float] = []

    def _take(self, kind: str, path: str) -> None:
        if kind not in self._took_s or (kind == "create" and "/log/" not in path):
            return
        self._process.sleep(self._took_s[kind])
        self.ended_s[kind].append(self._simulation.now_s)

    def run(self) -> Timed:
        self._simulation.run(self._simulation.spawn(self._process, "main", self._load))
        return self

    def _load(self) -> None:
        left = CALLERS

        def durable(future: Future[LogPosition], began_s: float) -> None:
            nonlocal left
            future.result()
            self.waits_s.append(self._simulation.now_s - began_s)
            if self._simulation.now_s < LASTS_S:
                append()
            else:
                left -= 1

        def append() -> None:
            began_s = self._simulation.now_s
            writer.submit(b"x").add_done_callback(lambda future: durable(future, began_s))

        with LogWriter.open_or_create(self._store, "a", runtime=self._process) as writer:
            for _ in range(CALLERS):
                append()
            self._simulation.block(lambda: not left, None)


@pytest.mark.parametrize(("put_s", "cas_s"), [(0.028, 0.058), (0.03, 0.09), (0.02, 0.035)])
def test_upload_ends_when_the_commit_under_way_does(put_s: float, cas_s: float) -> None:
    timed = Timed(put_s, cas_s).run()

    uploads, commits = (timed.ended_s[kind][6:] for kind in ("create", "replace"))
    assert len(commits) > 20
    # Each commit begins when the one before it has ended and its one fragment is there: at the same time.
    assert abs(len(uploads) - len(commits)) <= 1
    gaps = [later - earlier for earlier, later in pairwise(commits)]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(cas_s, abs=1e-3)
    at_once = [min(abs(upload - commit) for commit in commits) for upload in uploads]
    assert sorted(at_once)[len(at_once) // 2] < 1e-3
    waits_s = sorted(timed.waits_s)
    assert waits_s[len(waits_s) // 2] == pytest.approx(2 * cas_s, abs=2e-3)


def test_uploads_longer_than_commits_cut_one_batch_for_each_commit_s_time() -> None:
    timed = Timed(put_s=0.1, cas_s=0.02).run()

    cut_s = [ended_s - 0.1 for ended_s in timed.ended_s["create"][6:]]
    assert len(cut_s) > 20
    assert min(later - earlier for earlier, later in pairwise(cut_s)) > 0.02 - 1e-3


@pytest.mark.slow
def test_hundreds_of_fragments_are_uploaded_one_after_another_during_one_commit(memory_store: MemoryStore) -> None:
    """Regression: each upload began in the step of the one before it, up to the limit of the interpreter's stack."""
    answered, uploaded = threading.Event(), threading.Event()
    store = FaultyStore(memory_store)

    def before(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            answered.wait(60)
        if f"FragmentSeqNo={500:016x}" in path:
            uploaded.set()

    options = WriterOptions(fragments_in_flight_max=1000, uploads_max=1, batch_records_max=1, batch_age_s_max=0)
    with LogWriter.open_or_create(store, "a", options=options) as writer:
        store.before = before
        futures = [writer.submit(b"x") for _ in range(500)]
        uploaded.wait(30)
        answered.set()
        assert [future.result(60).offset for future in futures] == list(range(1, 501))
