"""Where an exercise writes: a folder of its own in the store, and how that is removed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from wal3_core.errors import InvalidRequestError, LogNotFoundError
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.options import RetryOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import FolderStore, ObjectStore
from wal3_core.store.retrying import for_store, until_answered, with_retries
from wal3_core.workers import Share

# The folder of all exercises of a store.
EXERCISES = "exercise/"
_RUN = re.compile(r"run-\d{8}T\d{6}Z-[0-9a-f]{6}", re.ASCII)
_OWN = re.compile(r"(log-\d{4}|dirty/p\d{2})(/|$)", re.ASCII)
LOGS_MAX = 10_000
PROCESSES_MAX = 100


class RunStore(FolderStore):
    """The folder of one exercise, as a store of its own: its logs share the workers as those of any store do."""

    @property
    def share(self) -> Share:
        """Whose work a request is: this store's."""
        return Share(self.url)


def new_run() -> str:
    """Make the name of an exercise: its time and a random part."""
    runtime = shared_runtime()
    began = datetime.fromtimestamp(runtime.now_us() // US_PER_S, UTC)
    return f"run-{began:%Y%m%dT%H%M%SZ}-{runtime.token()[:6]}"


def run_store(store: ObjectStore, run: str) -> RunStore:
    """Return the store of one exercise; InvalidRequestError for a name that none has."""
    if not _RUN.fullmatch(run):
        raise InvalidRequestError(f"exercise: expected a name as run-20260101T120000Z-a1b2c3, found {run[:80]!r}")
    return RunStore(store, f"{EXERCISES}{run}/")


def log_name(number: int) -> str:
    """Return the name of a log within its exercise."""
    return f"log-{number:04d}"


def server_name(process: int) -> str:
    """Return the name of a writing process: its appends are marked in ``dirty/`` of its exercise."""
    return f"p{process:02d}"


def leftovers(store: ObjectStore) -> list[str]:
    """Name the exercises that have objects in a store."""
    found = with_retries(store, shared_runtime()).list_folders(EXERCISES)
    names = [folder.removeprefix(EXERCISES).rstrip("/") for folder in found]
    return [name for name in names if _RUN.fullmatch(name)]


def remove(store: ObjectStore, run: str, progress: Callable[[int, int | None], None]) -> int:
    """Destroy the logs of an exercise and delete what that leaves; return how many logs there were.

    InvalidRequestError, and nothing deleted, when its folder contains a log that no exercise has. ``progress`` gets
    the number of logs destroyed, and of all.
    """
    runtime = shared_runtime()
    place = with_retries(run_store(store, run), runtime)
    # What is left would cost the store's user money: each step is tried again while the store does not answer.
    retry = for_store(RetryOptions(), place)
    logs = until_answered(lambda: list(list_logs(place)), retry, runtime)
    for name in logs:
        _check_own(run, name)
    for done, name in enumerate(logs):
        progress(done, len(logs))
        # Tried again, it may find that it was done.
        with suppress(LogNotFoundError):
            until_answered(partial(destroy, place, name, also_pinned=True, runtime=runtime), retry, runtime)
    # No log of this name begins again, so nothing needs the documents that say it was destroyed.
    for found in until_answered(lambda: list(place.list_objects("")), retry, runtime):
        _check_own(run, found.path)
        until_answered(partial(place.delete, found.path), retry, runtime)
    return len(logs)


def _check_own(run: str, name: str) -> None:
    if not _OWN.match(name):
        message = f"{EXERCISES}{run}: expected only the logs of an exercise, found {name[:80]!r}: remove it by hand"
        raise InvalidRequestError(message)
