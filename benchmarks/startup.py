"""How long a process takes until it is of use: imports, the command's help, a list of 2,000 logs, a completion.

Each program runs ten times; the shortest time counts, beside that of a Python that does nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wal3_core import LogWriter, open_store

LOGS = 2000
TIMES = 10
ROOT = Path(__file__).parents[1]
MAIN = "from wal3_core.cli import main; main()"
COMPLETION = "from wal3_core.cli.program import cli; cli(prog_name='wal3')"
COMPLETING = {"_WAL3_COMPLETE": "bash_complete", "COMP_WORDS": "wal3 s", "COMP_CWORD": "1"}


def fill(folder: str) -> None:
    store = open_store(Path(folder).as_uri())

    def append(number: int) -> None:
        with LogWriter.open_or_create(store, f"tenants/{number % 40}/log-{number}") as writer:
            writer.append(b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(LOGS)))


def seconds(*arguments: str, **environment: str) -> float:
    taken = []
    for _ in range(TIMES):
        begun_s = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        taken.append(time.perf_counter() - begun_s)
    return min(taken)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fill(folder)
        figures = {
            "python -c pass": seconds("-c", "pass"),
            "import wal3_core": seconds("-c", "import wal3_core"),
            "open_store, LogWriter, LogReader": seconds(
                "-c", "from wal3_core import LogReader, LogWriter, open_store; open_store('memory:a')"
            ),
            "wal3 --help": seconds("-c", MAIN, "--help"),
            "a completion": seconds("-c", COMPLETION, **COMPLETING),
            f"wal3 ls, {LOGS:,} logs": seconds("-c", MAIN, "--store", folder, "ls"),
        }
    for name, taken_s in figures.items():
        print(f"{name:<34} {taken_s:6.3f} s")


if __name__ == "__main__":
    main()
