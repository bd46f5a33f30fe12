"""A queue server as a process of its own, and what it takes while clients misuse it."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.programs import Program

from .serving import DEADLINE_S, Served

MIB = 2**20
TOKEN = "a-token-of-a-server-under-attack"
BODY_BYTES = 16 * MIB
_PROBE_S = 0.05
_WAL3 = (sys.executable, "-c", "from wal3_core.cli import main; main()")
# A stranger's request, and one that never ends.
REQUEST = b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n\r\n"
BEGUN = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "


class Cost(NamedTuple):
    """What something took: seconds, those of the server's processor, and memory above what it had before.

    ``health_s`` is how long the slowest answer of /health took meanwhile.
    """

    seconds: float
    cpu_s: float
    mib: float
    health_s: float


class Attacked(Served):
    """A server in a process of its own."""

    def __init__(self, url: str, process: Program) -> None:
        super().__init__(url)
        self._proc = Path(f"/proc/{process.pid}")
        parts = urlsplit(url)
        self.address = str(parts.hostname), int(parts.port or 0)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=DEADLINE_S)

    def tell(self, data: bytes) -> bytes:
        """Send bytes; return all that comes until the server ends the connection."""
        with self.connect() as connection, suppress(ConnectionError):
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(2**16), b""))
        return b""

    def ends(self, connection: socket.socket) -> bool:
        """Whether the server ends a connection, after whatever it sends."""
        with suppress(ConnectionError):
            while connection.recv(2**16):
                pass
        return True

    def num_files(self) -> int:
        return len(list((self._proc / "fd").iterdir()))

    def _cpu_s(self) -> float:
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _mib(self, field: str) -> float:
        found = re.search(rf"{field}:\s+(\d+) kB", (self._proc / "status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    @contextmanager
    def measured(self) -> Iterator[list[Cost]]:
        """Give a list that has, at the end, what was taken meanwhile."""
        costs: list[Cost] = []
        health, over = [0.0], threading.Event()

        def probe() -> None:
            while not over.wait(_PROBE_S):
                begun_s = time.monotonic()
                assert self.ok("GET", "/health") == {"status": "ok"}
                health.append(time.monotonic() - begun_s)

        (self._proc / "clear_refs").write_text("5")
        before, cpu_s, begun_s = self._mib("VmRSS"), self._cpu_s(), time.monotonic()
        prober = threading.Thread(target=probe)
        prober.start()
        try:
            yield costs
        finally:
            seconds = time.monotonic() - begun_s
            over.set()
            prober.join(timeout=DEADLINE_S)
            costs.append(Cost(seconds, self._cpu_s() - cpu_s, self._mib("VmHWM") - before, max(health)))


@contextmanager
def attacked(folder: Path, *arguments: str, files_max: int | None = None) -> Iterator[Attacked]:
    """Serve the queues of a store in a folder, as ``wal3 queue serve`` does; it may open ``files_max`` files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    command = [*_WAL3, "--store", f"file://{folder}", "queue", "serve", "--port", "0", "--json", *arguments]
    if files_max is not None:
        command = ["sh", "-c", f'ulimit -n {files_max}; exec "$@"', "sh", *command]
    with Program(command, stdout=-1, text=True) as process:
        try:
            assert process.stdout is not None
            yield Attacked(json.loads(process.stdout.readline())["url"], process)
        finally:
            process.terminate()
            resource.setrlimit(resource.RLIMIT_NOFILE, files)


def _filled(before: bytes, part: bytes, after: bytes, size: int) -> bytes:
    return before + part * ((size - len(before) - len(after)) // len(part)) + after


def bodies(size: int = BODY_BYTES) -> dict[str, tuple[str, bytes]]:
    """Return bodies of a size, each with what is done with it: all are refused but the last."""
    value = b'{"value":"' + b"QUJD" * (MIB // 4) + b'"}'
    extra = b"".join(b',"%x":1' % number for number in range(size // 10))
    return {
        "items that are numbers": ("enqueue_many", _filled(b'{"items":[', b"1,", b"1]}", size)),
        "items without a value": ("enqueue_many", _filled(b'{"items":[', b"{},", b"{}]}", size)),
        "leases that are numbers": ("release_many", _filled(b'{"leases":[', b"1,", b"1]}", size)),
        "ids that are texts": ("kick", _filled(b'{"ids":[', b'"",', b"1]}", size)),
        "fields of other names": ("enqueue", b'{"text":"a"' + extra[: size - 12] + b"}"),
        "brackets": ("enqueue", b"[" * size),
        "spaces": ("enqueue", b" " * size),
        "digits": ("enqueue", _filled(b'{"text":"a","priority":', b"1", b"}", size)),
        "quotes": ("enqueue", b'"' * size),
        "a text of escapes": ("enqueue", _filled(b'{"text":"', rb"\"", b'"}', size)),
        "a text of backslashes": ("enqueue", _filled(b'{"text":"', rb"\\", b'"}', size)),
        "a wide text": ("enqueue", _filled(b'{"text":"\xf0\x9f\x98\x80', b"a", b'"}', size)),
        "a name as long": ("enqueue", _filled(b'{"', b"a", b'":1}', size)),
        "large values": ("enqueue_many", b'{"items":[' + b",".join([value] * (size // MIB - 1)) + b"]}"),
    }


def flood(address: tuple[str, int], parts: Iterable[bytes], seconds: float) -> tuple[float, socket.socket]:
    """Send without reading, until the server ends the connection or takes no more; return how much it took."""
    connection = socket.create_connection(address, timeout=1)
    sent, until_s = 0, time.monotonic() + seconds
    with suppress(OSError):
        for part in parts:
            if time.monotonic() > until_s:
                break
            sent += connection.send(part)
    connection.settimeout(DEADLINE_S)
    return sent / MIB, connection
