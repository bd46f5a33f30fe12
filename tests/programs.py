"""Programs that tests start: with the signals of a program in the foreground, and none without an end.

The parent of the tests may ignore SIGINT (a shell does for what it starts in the background, and so do
CI systems and nohup with SIGHUP), and what is ignored stays so in children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

DEADLINE_S = 600
_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
# Not by preexec_fn, which runs Python between fork and exec, where another thread's locks stay held for ever.
_START = """import os, signal, sys
for name in sys.argv[2].split():
    signal.signal(signal.Signals[name], signal.Handlers[sys.argv[1]])
os.execvp(sys.argv[3], sys.argv[3:])
"""


def in_foreground(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Give the command that runs a program with default signals; its process is the program's."""
    names = " ".join(each.name for each in _SIGNALS)
    return [sys.executable, "-I", "-S", "-c", _START, "SIG_DFL", names, *map(os.fspath, command)]


def in_background(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Give the command that runs a program with SIGINT ignored, as a shell does for ``program &``."""
    return [sys.executable, "-I", "-S", "-c", _START, "SIG_IGN", "SIGINT SIGQUIT", *map(os.fspath, command)]


class Program(subprocess.Popen[Any]):
    """A program that is killed when it has run for ``deadline_s`` seconds: so a reader of its output always returns."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        deadline_s: float = DEADLINE_S,
        background: bool = False,
        **options: Any,  # noqa: ANN401 - those of Popen
    ) -> None:
        super().__init__(in_background(command) if background else in_foreground(command), **options)
        self._deadline = threading.Timer(deadline_s, self.kill)
        self._deadline.daemon = True
        self._deadline.start()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        code = super().wait(timeout)
        self._deadline.cancel()
        return code
