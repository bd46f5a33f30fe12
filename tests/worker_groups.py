"""Spreads tests over workers by group, also when a worker has died.

The scheduler of pytest-xdist 3.8.0 then waits for ever: it hands out again what the dead worker had done, and gives the
new worker a single test, which that does not begin before it knows of another one, or that there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class WorkerGroups(LoadGroupScheduling):
    """What a dead worker had not begun goes to the others; the test that it died of has failed."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a worker died of; None when it had none left."""
        units = self.assigned_work[node]
        died_of = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        if died_of is None:
            return super().remove_node(node)
        del self.assigned_work[node]
        for scope, unit in units.items():
            left = {test: False for test, done in unit.items() if not done and test != died_of}
            if left:
                self.workqueue[scope] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkerGroups | None:
    """Take the place of the original."""
    return WorkerGroups(config, log) if config.getvalue("dist") == "loadgroup" else None
