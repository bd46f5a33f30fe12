"""A queue server on a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .serving import serving

if TYPE_CHECKING:
    from wal3_core import MemoryStore

    from .serving import Running


@pytest.fixture
def server(memory_store: MemoryStore) -> Iterator[Running]:
    """A server without tokens, with the queue ``jobs``."""
    with serving(memory_store) as running:
        running.ok("POST", "/v1/queues", {"queue": "jobs"})
        yield running
