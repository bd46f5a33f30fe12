"""What the threads of a worker did when a signal such as SIGSEGV ended it, shown where the run ends."""

from __future__ import annotations

import faulthandler
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_PATH = "worker_stacks"
_FIRST = ("Fatal ", "Current thread ")
_DIED = pytest.StashKey[dict[str, str]]()


def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker where to write them."""
    with tempfile.NamedTemporaryFile(prefix=f"{node.gateway.id}-", delete=False) as file:
        node.workerinput[_PATH] = file.name


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have a worker write them there, not to stderr, whose end alone may be kept."""
    path = getattr(session.config, "workerinput", {}).get(_PATH)
    if path is not None:
        faulthandler.enable(Path(path).open("w"))  # noqa: SIM115 - it keeps the file open


def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Keep those of a worker that died."""
    path = Path(node.workerinput[_PATH])
    if error:
        node.config.stash.setdefault(_DIED, {})[node.gateway.id] = path.read_text(errors="replace")
    path.unlink()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show them."""
    for worker, stacks in terminalreporter.config.stash.get(_DIED, {}).items():
        terminalreporter.section(f"stacks of {worker} when it died")
        terminalreporter.write_line(_culprit_first(stacks) or "none: no signal ended it that can be caught")


def _culprit_first(stacks: str) -> str:
    """Put the thread that the signal ended before the others: of a long output, the beginning is kept."""
    return "\n\n".join(sorted(stacks.split("\n\n"), key=lambda part: not part.startswith(_FIRST)))
