"""Limits of a subscription to a feed, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal3_core.arguments import SECONDS_MAX
from wal3_core.model.offset_ranges import RANGES_MAX
from wal3_core.options import ReaderOptions, check_ranges
from wal3_core.views.feed.subscribed import ATTEMPTS_MAX

_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """How a subscription delivers, and how it saves what is acknowledged.

    A message that is not acknowledged within ``ack_wait_s`` seconds is delivered again. At most ``prefetch_max``
    messages are in memory at a time, delivered and not acknowledged, or about to be delivered; then ``recv`` waits.
    One that was delivered ``max_deliveries`` times, or without a limit for ever, becomes a dead letter. With a limit,
    deliveries are counted in the cursor before they are made.
    Acknowledgements are saved when there are ``save_acks_max`` of them, or ``save_s_max`` seconds after the first.
    ``pins`` says, when the subscription is created, whether it keeps its messages from being collected, or gets a
    ``Gap``. ``reader`` says how often it polls.
    """

    ack_wait_s: float = 30.0
    prefetch_max: int = 256
    max_deliveries: int | None = None
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
                **({"max_deliveries": (1, ATTEMPTS_MAX - 1)} if self.max_deliveries is not None else {}),
                "save_acks_max": (1, _COUNT_MAX),
                "save_s_max": (0, SECONDS_MAX),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """How far a subscription is, in messages of its topics, as this process knows it.

    ``num_pending`` messages are in the log and were not delivered yet, ``num_ack_pending`` were and are not
    acknowledged, of which ``num_redelivered`` more than once; ``num_dead`` are dead letters. This process has passed
    ``num_strays`` records that are no messages. All below the offset ``ack_floor`` is done.
    """

    num_pending: int
    num_ack_pending: int
    num_redelivered: int
    num_dead: int
    num_strays: int
    ack_floor: int
