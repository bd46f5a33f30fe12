"""Limits of a subscription to a feed."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.arguments import SECONDS_MAX
from wal3_core.model.offset_ranges import RANGES_MAX
from wal3_core.options import ReaderOptions, check_ranges

_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """How a subscription delivers, and how it saves what is acknowledged.

    A message that is not acknowledged within ``ack_wait_s`` seconds is delivered again. At most ``prefetch_max``
    messages are in memory at a time, delivered and not acknowledged, or about to be delivered; then ``recv`` waits.
    Acknowledgements are saved when there are ``save_acks_max`` of them, or ``save_s_max`` seconds after the first.
    ``pins`` says, when the subscription is created, whether it keeps its messages from being collected, or gets a
    ``Gap``. ``reader`` says how often it polls.
    """

    ack_wait_s: float = 30.0
    prefetch_max: int = 256
    save_acks_max: int = 1000
    save_s_max: float = 5.0
    pins: bool = True
    reader: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_ranges(
            self,
            {
                "ack_wait_s": (0.001, SECONDS_MAX),
                "prefetch_max": (1, RANGES_MAX - 1),
                "save_acks_max": (1, _COUNT_MAX),
                "save_s_max": (0, SECONDS_MAX),
            },
        )
