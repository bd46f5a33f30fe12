"""An S3 server behind a rough network, and `wal3 exercise` on it.

    .venv/bin/python -m tests.processes.exercising --duration 30m --with-maintenance --summary summary.json

takes the options of `wal3 exercise`, and prints at the end what the network did.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.processes.fault_proxy import Fault, FaultProxy, listening
from tests.s3_server import new_s3_url, s3_server, use_endpoint

# After each of these, the client cannot know whether the PUT was done, or will be.
AMBIGUOUS = (Fault.DROP_REPLY, Fault.LATE, Fault.INTERNAL, Fault.DROP_REQUEST)
_BURST_EVERY_S, _BURST_S = 10.0, 0.5
DEADLINE_S = 3600


@dataclass
class RoughProxy(FaultProxy):
    """Leaves a share of the PUTs without a clear answer, loses some reads, and has bursts of 503."""

    ambiguous: float = 0.05
    lost_reads: float = 0.01
    refused_in_bursts: float = 0.5

    def _decide(self, method: str, path: str) -> Fault | None:
        del path
        chance = self._chance.random()
        if time.monotonic() % _BURST_EVERY_S < _BURST_S and chance < self.refused_in_bursts:
            return Fault.SLOW_DOWN
        if method == "PUT":
            return self._chance.choice(AMBIGUOUS) if chance < self.ambiguous else None
        return Fault.DROP_REPLY if chance < self.lost_reads else None


def through(url: str, proxy: FaultProxy) -> str:
    """Return the URL of a store on S3, through a proxy."""
    return f"{url}{'&' if '?' in url else '?'}endpoint={proxy.endpoint}"


def main(arguments: Sequence[str]) -> int:
    """Exercise a store; return the exit code."""
    with s3_server() as endpoint:
        url = new_s3_url(use_endpoint(endpoint))
        with listening(RoughProxy(endpoint)) as proxy:
            program = [sys.executable, "-c", "from wal3_core.cli import main; main()"]
            command = [*program, "--store", through(url, proxy), "exercise", *arguments]
            code = subprocess.run(command, check=False, timeout=DEADLINE_S).returncode
            print(f"requests: {dict(proxy.requests)}; faults: { {fault.name: n for fault, n in proxy.fired.items()} }")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
