"""The pins that copies hold on their source: each belongs to one claim on a target, and its name is never used again.

A claim names its pin, and the call that holds the claim may rely on it. A pin that no claim names, not yet or no
longer, is deleted by the call that made it or ended its claim. Source: docs/protocol.md, "Copy".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError, LogError, LogNotFoundError, LogReplacedError
from wal3_core.storage.documents.pin_store import PinStore
from wal3_core.storage.retrying import for_store, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.paths import LogId
    from wal3_core.model.pin import Pin
    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


class CopyPins:
    """Pins of one life of a source; ``left`` names those that could not be deleted and may still exist."""

    def __init__(self, store: ObjectStore, log: str, runtime: Runtime, retry: RetryOptions, log_id: LogId) -> None:
        self._runtime = runtime
        self._retry = for_store(retry, store)
        self._pins = PinStore(store, log, runtime=runtime, retry=retry, log_id=log_id)
        self.left: set[str] = set()

    def make(self, target: str) -> tuple[str, Pin]:
        """Pin what the source holds now, under a name that no other pin has ever had."""
        name = f"copy-{self._runtime.token()}"
        try:
            return name, self._pins.create(name, reason=f"being copied to {target}")
        except LogError:
            # Its object stays: a create that is still under way finds the name taken.
            self._remove(name, self._pins.delete)
            raise

    def find(self, name: str) -> Pin | None:
        """Load a pin to rely on; None if there is none, or it was never finished."""
        pin = self._pins.load(name)
        return pin if pin is not None and pin.complete else None

    def check(self, name: str) -> None:
        """Raise if others deleted the pin that is relied on: objects missing then are no damage."""
        if self.find(name) is None:
            message = f"pin {name}: expected it to stay until the copy is whole, found it deleted: copy again"
            raise InvalidRequestError(message)

    def let_go(self, name: str) -> None:
        """Delete a pin that is no longer relied on; if it cannot be deleted, note it in ``left`` instead of raising."""
        self._remove(name, self._pins.forget)

    def _remove(self, name: str, remove: Callable[[str], None]) -> None:
        try:
            until_answered(lambda: remove(name), self._retry, self._runtime)
        except (LogNotFoundError, LogReplacedError):
            # It was deleted with its log.
            return
        except LogError:
            self.left.add(name)
