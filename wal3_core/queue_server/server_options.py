"""The limits of a queue server, with their units."""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.options import MIB, check_ranges

_BYTES_MAX = 2**40
_COUNT_MAX = 2**31 - 1
# As many as one operation of a queue takes.
_ITEMS_MAX = 10_000
_SECONDS_MAX = 24 * 60 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueServerOptions:
    """Limits of one server.

    A request's header arrives within ``header_s_max`` seconds, of the connection or of the answer before. Its body has
    at most ``body_bytes_max`` bytes, and arrives within ``body_s_max`` seconds; those of all requests under way have
    ``held_bytes_max``. A client that takes nothing of its answer for ``answer_s_max`` seconds loses its connection. A
    batch has at most ``items_max`` items; the values of an answer have ``answer_bytes_max`` bytes together, unless its
    first alone has more. A dequeue waits ``wait_s_max`` seconds at most. ``requests_max`` requests are under way at a
    time, and ``waiting_max`` others wait for an item. A client (a token, or an address where there are none) may make
    ``requests_per_s`` requests a second, and two seconds' worth at once; 0: no limit. ``queues_max`` queues are open at
    a time: for one more, the one that was used least lately is closed. The end waits ``stop_s_max`` seconds for
    requests under way.
    """

    header_s_max: float = 10.0

    body_bytes_max: int = 16 * MIB
    body_s_max: float = 30.0
    held_bytes_max: int = 256 * MIB
    answer_s_max: float = 30.0
    items_max: int = 1000
    answer_bytes_max: int = 128 * MIB
    wait_s_max: float = 300.0
    requests_max: int = 2000
    waiting_max: int = 2000
    requests_per_s: float = 1000.0
    queues_max: int = 1000
    stop_s_max: float = 10.0

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range."""
        check_ranges(
            self,
            {
                "header_s_max": (0.001, _SECONDS_MAX),
                "body_bytes_max": (1, _BYTES_MAX),
                "body_s_max": (0.001, _SECONDS_MAX),
                "held_bytes_max": (self.body_bytes_max, _BYTES_MAX),
                "answer_s_max": (0.001, _SECONDS_MAX),
                "items_max": (1, _ITEMS_MAX),
                "answer_bytes_max": (1, _BYTES_MAX),
                "wait_s_max": (0, _SECONDS_MAX),
                "requests_max": (1, _COUNT_MAX),
                "waiting_max": (0, _COUNT_MAX),
                "requests_per_s": (0, _COUNT_MAX),
                "queues_max": (1, _COUNT_MAX),
                "stop_s_max": (0, _SECONDS_MAX),
            },
        )

    @property
    def connections_max(self) -> int:
        """How many connections there may be: some are between two requests. One more ends the one idle longest."""
        return (self.requests_max + self.waiting_max) * 5 // 4 + 4

    @property
    def too_large(self) -> str:
        """What is said of a body that is."""
        return f"body: expected at most {self.body_bytes_max} bytes, found more"
