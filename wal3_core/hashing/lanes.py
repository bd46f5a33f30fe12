"""Sums of records' digests, several records side by side in the lanes of vector registers, where that is possible.

It is where numba is installed (the extra ``fast``) and ``WAL3_FAST`` is not 0. A process that has hashed some megabytes
(with ``WAL3_FAST=1``, at once) loads the code from the cache, or has another process compile it, and goes on with
``hashlib`` until that is done. Code is used only after its digests were compared with those of ``hashlib``.

Nothing here waits, and there is no thread and no lock: a process may fork, or end, at any time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from wal3_core.hashing import code_cache
from wal3_core.hashing.calling import BLOCK_BYTES, DONE, Function, RecordColumns, Sums, call, check
from wal3_core.runtime.extras import missing
from wal3_core.runtime.loggers import HASHING

VARIABLE = "WAL3_FAST"
_BUILDER = "wal3_core.hashing.building"
# Blocks that hashlib hashes in the time in which the code is loaded, as measured.
_BLOCKS_BEFORE_LOADING = 200_000
# Blocks between two attempts to load the code while it is compiled.
_BLOCKS_PER_CHECK = 2_000
# Records that fill the lanes; blocks that hashlib hashes in the time of a call, as measured.
_RECORDS_MIN, _BLOCKS_MIN = 4, 96


@dataclass(frozen=True, slots=True)
class Hashing:
    """What hashes records in this process: ``compiled code`` or ``hashlib``, and why."""

    by: str
    because: str


class Lanes:
    """The compiled code of a process: not there, then perhaps there. ``asked`` is the variable's value."""

    def __init__(self, asked: str | None) -> None:
        self._function: Function | None = None
        self._reason = "not loaded before some megabytes were hashed"
        self._off = asked == "0"
        if self._off:
            self._reason = f"{VARIABLE} is 0"
        self._blocks, self._blocks_next = 0, 0 if asked == "1" else _BLOCKS_BEFORE_LOADING
        self._name: str | None = None
        self._builder: int | None = None
        # Taken by the one thread that loads the code; the others go on.
        self._turn = deque([True])

    def hashing(self) -> Hashing:
        """Say what hashes records."""
        return Hashing("hashlib", self._reason) if self._function is None else Hashing("compiled code", self._reason)

    def may_fill(self, records: int) -> bool:
        """Whether so many records are enough for ``may_sum``, which takes their size as well."""
        return not self._off and records >= _RECORDS_MIN

    def may_sum(self, records: int, num_bytes: int) -> bool:
        """Whether ``add`` may be called for records of so many bytes of keys and bodies, and would be faster."""
        if not self.may_fill(records):
            return False
        blocks = records + num_bytes // BLOCK_BYTES
        if blocks < _BLOCKS_MIN:
            return False
        if self._function is None:
            self._advance(blocks)
            return False
        return True

    def add(self, columns: RecordColumns, begins: Sequence[int], sums: Sums) -> bool:
        """Add the words of the records' digests to the sums of their groups, which begin at the given rows.

        False when ``hashlib`` has to do it: nothing was added then.
        """
        function = self._function
        return function is not None and call(function, columns, begins, sums) == DONE

    def load(self) -> bool:
        """Load the code now, whatever was hashed; False while another process still compiles it."""
        self._advance(self._blocks_next)
        return self._function is not None

    def after_fork(self) -> None:
        """In a forked child: the thread that was loading the code does not exist, and may have left locks behind."""
        if not self._turn:
            self._switch_off("the process was forked while the code was loaded")
        # The child of the parent, which this process cannot wait for.
        self._builder = None

    def _advance(self, blocks: int) -> None:
        self._blocks += blocks
        if self._off or self._function is not None or self._blocks < self._blocks_next:
            return
        try:
            turn = self._turn.pop()
        except IndexError:
            return
        try:
            self._find()
        except Exception as error:  # noqa: BLE001 - hashlib does the same, slower
            HASHING.warning("records are hashed by hashlib: the faster code cannot be used: %r", error)
            self._switch_off(repr(error))
        finally:
            self._turn.append(turn)

    def _find(self) -> None:
        self._blocks_next = self._blocks + _BLOCKS_PER_CHECK
        if self._name is None:
            if importlib.util.find_spec("numba") is None:
                self._switch_off(missing("numba", "fast"))
                return
            from wal3_core.hashing.target import code_name  # noqa: PLC0415 - llvmlite is an extra, and large

            self._name = code_name()
        code = code_cache.read(self._name)
        if code is not None:
            from wal3_core.hashing.target import load  # noqa: PLC0415 - see above

            function = load(code)
            check(function)
            self._function, self._reason = function, "it gives the digests of hashlib"
        elif self._builder is None:
            self._builder = _start_builder()
            self._reason = "the faster code is being compiled"
        else:
            self._check_builder(self._builder)

    def _check_builder(self, builder: int) -> None:
        # Without a child of its own, as after a fork, a process waits for that of another.
        ended, status = 0, 0
        with contextlib.suppress(ChildProcessError):
            ended, status = os.waitpid(builder, os.WNOHANG)
        if ended and status and code_cache.read(str(self._name)) is None:
            code = os.waitstatus_to_exitcode(status)
            raise RuntimeError(f"{_BUILDER}: expected exit code 0, found {code}: run it to see why")

    def _switch_off(self, reason: str) -> None:
        self._off, self._reason = True, reason


LANES = Lanes(os.environ.get(VARIABLE))
os.register_at_fork(after_in_child=LANES.after_fork)


def _start_builder() -> int:
    """Start the process that compiles the code, away from this one's terminal and signals; return its id."""
    if "python" not in os.path.basename(sys.executable or ""):  # noqa: PTH119 - it may be empty
        raise RuntimeError(f"sys.executable: expected a Python that can compile, found {sys.executable!r}")
    # What configures numba was meant for others.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PYTHONSAFEPATH": "1"}
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    arguments = [sys.executable, "-m", _BUILDER]
    return os.posix_spawn(sys.executable, arguments, environment, file_actions=nothing, setsid=True)
