"""Trying a request again, with pauses that double and spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime


def attempts(options: RetryOptions, runtime: Runtime) -> Iterator[int]:
    """Count the tries from 1, sleeping between them; ends after the last one."""
    pause_s = options.pause_s_min
    for attempt in range(1, options.attempts_max + 1):
        yield attempt
        if attempt < options.attempts_max:
            runtime.sleep(pause_s * (0.5 + runtime.jitter()))
            pause_s = min(pause_s * 2, options.pause_s_max)
