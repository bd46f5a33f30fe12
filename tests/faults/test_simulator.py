"""A simulation leaves no task suspended: one that is freed later would run its handlers in the middle of other code."""

from __future__ import annotations

import pytest

from tests.faults.simulator import NEVER_S, SimProcess, Simulation


@pytest.mark.parametrize("fails", [False, True])
def test_all_tasks_end_with_the_main_one_even_those_of_a_killed_process(*, fails: bool) -> None:
    simulation = Simulation(0)
    main, killed = SimProcess(simulation, "main"), SimProcess(simulation, "killed")
    lock, ended = main.lock(), []

    def wait(name: str) -> None:
        try:
            simulation.pause(NEVER_S)
        finally:
            ended.append(name)
            with lock:
                ended.append("a handler that waits goes no further")

    def direct() -> None:
        simulation.pause(1)
        simulation.kill(killed)
        simulation.pause(1)
        assert ended == []
        main.spawn(lambda: ended.append("never began"))
        if fails:
            raise ZeroDivisionError

    waiting = [
        simulation.spawn(process, process.name, lambda name=process.name: wait(name)) for process in (main, killed)
    ]
    task = simulation.spawn(main, "directing", direct)
    if fails:
        with pytest.raises(ZeroDivisionError):
            simulation.run(task)
    else:
        simulation.run(task)

    assert sorted(ended) == ["killed", "main"]
    assert all(each.body.dead for each in waiting)
