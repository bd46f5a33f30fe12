"""What the threads of a worker did when a signal such as SIGSEGV ended it, shown where the run ends."""

from __future__ import annotations

import faulthandler
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_FOLDER = "worker_stacks"
_FILE = pytest.StashKey[IO[str]]()
_DIED = pytest.StashKey[dict[str, str]]()


def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker where to write them."""
    node.workerinput[_FOLDER] = tempfile.mkdtemp(prefix=f"{node.gateway.id}-")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have a worker write them there, not to stderr, whose end alone may be kept."""
    folder = getattr(session.config, "workerinput", {}).get(_FOLDER)
    if folder is not None:
        session.config.stash[_FILE] = file = Path(folder, "stacks").open("w")  # noqa: SIM115 - it stays open to the end
        faulthandler.enable(file)


def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Keep those of a worker that died."""
    path = Path(node.workerinput[_FOLDER], "stacks")
    if path.exists():
        stacks = path.read_text(errors="replace")
        if error:
            node.config.stash.setdefault(_DIED, {})[node.gateway.id] = stacks
        path.unlink()
    path.parent.rmdir()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show them."""
    for worker, stacks in terminalreporter.config.stash.get(_DIED, {}).items():
        terminalreporter.section(f"stacks of {worker} when it died")
        terminalreporter.write_line(stacks or "none: no signal ended it that can be caught")
