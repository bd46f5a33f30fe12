"""A call of a store that never returns keeps no caller, and no process, for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.faults.simulator import SimProcess, Simulation
from tests.stores import FaultyStore
from wal3_core import (
    Fleet,
    FleetOptions,
    LogWriter,
    MemoryStore,
    OverloadedError,
    UnknownDurabilityError,
    WriterOptions,
)
from wal3_core.runtime.threads import HUNG_S_MAX


def test_append_and_close_end_though_a_call_of_the_store_never_returns() -> None:
    simulation = Simulation(0)
    process = SimProcess(simulation, "p", steady=True)
    took_s: list[float] = []

    def use() -> None:
        store = FaultyStore(MemoryStore(process))
        writer = LogWriter.open_or_create(store, "a", options=WriterOptions(delivery_timeout_s=1), runtime=process)
        store.before = lambda kind, _path: simulation.block(lambda: False, None) if kind == "replace" else None
        for call in (lambda: writer.append(b"x"), writer.flush, writer.close):
            began_s = simulation.now_s
            with pytest.raises(UnknownDurabilityError, match="1 appends have no outcome after .* does not return"):
                call()
            took_s.append(simulation.now_s - began_s)

    simulation.run(simulation.spawn(process, "main", use))

    assert 1 + HUNG_S_MAX <= took_s[0] < 2 * HUNG_S_MAX
    # What has waited too long already is not waited for as long again.
    assert max(took_s[1:]) < HUNG_S_MAX / 3


def test_append_that_waits_for_room_ends_and_is_not_begun() -> None:
    simulation = Simulation(0)
    process = SimProcess(simulation, "p", steady=True)

    def use() -> None:
        store = FaultyStore(MemoryStore(process))
        options = WriterOptions(delivery_timeout_s=1, record_bytes_max=1000, batch_bytes_max=1000, bytes_held_max=1000)
        writer = LogWriter.open_or_create(store, "a", options=options, runtime=process)
        store.before = lambda kind, _path: simulation.block(lambda: False, None) if kind == "replace" else None
        first = writer.submit(bytes(900))
        with pytest.raises(OverloadedError) as refused:
            writer.submit(bytes(900))
        assert not first.done()
        assert isinstance(refused.value.__cause__, UnknownDurabilityError)

    simulation.run(simulation.spawn(process, "main", use))

    assert HUNG_S_MAX < simulation.now_s < 2 * HUNG_S_MAX


def test_fleet_s_append_and_close_end_though_a_call_of_the_store_never_returns() -> None:
    simulation = Simulation(0)
    process = SimProcess(simulation, "p", steady=True)

    def use() -> None:
        store = FaultyStore(MemoryStore(process))
        options = FleetOptions(creates=True, writer=WriterOptions(delivery_timeout_s=1))
        fleet = Fleet.open(store, options=options, runtime=process)
        fleet.append("a", b"first")
        store.before = lambda kind, _path: simulation.block(lambda: False, None) if kind == "replace" else None
        for call in (lambda: fleet.append("a", b"x"), fleet.flush, fleet.close):
            with pytest.raises(UnknownDurabilityError, match="1 appends have no outcome after .* does not return"):
                call()

    simulation.run(simulation.spawn(process, "main", use))


@pytest.mark.slow
def test_process_ends_though_a_call_of_the_store_never_returns(local_url: str) -> None:
    program = """
    import logging, sys, threading
    from tests.stores import FaultyStore
    from wal3_core import *
    from wal3_core.runtime import ThreadRuntime
    from wal3_core.store.instrumented import InstrumentedStore
    logging.basicConfig()
    runtime, called = ThreadRuntime(hung_s_max=3.0), threading.Event()
    faulty = FaultyStore(open_store(sys.argv[1]))
    writer = LogWriter.open_or_create(InstrumentedStore(faulty, runtime), "a", runtime=runtime)

    def hang(kind, path):
        called.set()
        threading.Event().wait()

    faulty.before = hang
    writer.submit(b"x")
    called.wait()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), local_url],
        timeout=120,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "the process ends without an outcome of 1 appends" in ended.stderr
    assert "a: a task has not ended for 3 s" in ended.stderr
    assert f"(store {local_url}: PUT a/" in ended.stderr, ended.stderr
