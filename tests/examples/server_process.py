"""The message server as a process that tests kill."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from examples.message_server.client import Publisher
from tests.programs import Program

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 300.0


class ServerProcess:
    """A server that is killed and started again, on the same port and store."""

    def __init__(self, url: str, *options: str) -> None:
        self.store = url
        self._options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._program: Program | None = None

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/socket"

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "examples.message_server",
            self.store,
            *self._options,
            "--port",
            str(self.port),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._program = Program(command, cwd=ROOT, env=environment, deadline_s=3 * DEADLINE_S)

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._program is not None:
            self._program.send_signal(number)
            self._program.wait(timeout=DEADLINE_S)
            self._program = None


def publish(url: str, *bodies: object) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), Publisher(url) as publisher:
            for body in bodies:
                await publisher.publish("chat/lobby", body)

    asyncio.run(run())
