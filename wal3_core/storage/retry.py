"""Trying a request again: with pauses that double and spread, or once where its answer was damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import CorruptError, MissingError, StoreDeniedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime

T = TypeVar("T")


def attempts(options: RetryOptions, runtime: Runtime) -> Iterator[int]:
    """Count the tries from 1, sleeping between them; ends after the last one."""
    pause_s = options.pause_s_min
    for attempt in range(1, options.attempts_max + 1):
        yield attempt
        if attempt < options.attempts_max:
            runtime.sleep(pause_s * (0.5 + runtime.jitter()))
            pause_s = min(pause_s * 2, options.pause_s_max)


def until_answered(load: Callable[[], T], options: RetryOptions, runtime: Runtime) -> T:
    """Load something, trying again while the store does not answer; what the last try met is raised."""
    for _ in attempts(options, runtime):
        try:
            return load()
        except StoreDeniedError:
            raise
        except UnavailableError as error:
            failure = error
    raise failure


def reread_if_damaged(load: Callable[[], T]) -> T:
    """Load something, once more if it is damaged: damage on the way is not damage at rest."""
    try:
        return load()
    except MissingError:
        raise
    except CorruptError:
        # Behind the block: in it, what was read would be kept in memory by the error while it is read again.
        pass
    return load()
