"""The driver's part of a verification: it reads a log's manifest and cursors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import LogError, LogReplacedError, StoreDeniedError
from wal3_core.fleet.asking import ask
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import Problem, cursor_problems
from wal3_core.model.paths import CURSOR_FOLDER, MANIFEST
from wal3_core.options import ReaderOptions
from wal3_core.runtime import shared_runtime
from wal3_core.spark.cutting import Piece, pieces_of

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One log's verification: the ``manifest``, which leads the tasks to everything below it.

    It is None when it could not be read; ``problems`` then say why, otherwise what is wrong with the cursors.
    """

    log: str
    manifest: Manifest | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def pieces(self) -> list[Piece]:
        """The pieces that the tasks read."""
        return [] if self.manifest is None else pieces_of(self.log, self.manifest)


def plan_log(store: ObjectStore, log: str) -> Plan:
    """Read the top of a log; its problems are in the plan. UnavailableError when the store does not answer."""
    found = ask(partial(_read, store), log)
    if isinstance(found, LogReplacedError):
        # The name has another life since the first request: that one is planned.
        return plan_log(store, log)
    return Plan(log=log, problems=(Problem(MANIFEST, str(found)),)) if isinstance(found, LogError) else found


def _read(store: ObjectStore, log: str) -> Plan:
    manifest = LogReader(store, log, options=ReaderOptions(), runtime=shared_runtime()).manifest()
    try:
        problems = tuple(cursor_problems(store, log, shared_runtime(), manifest))
    except StoreDeniedError as error:
        # What the manifest leads to can still be read back.
        problems = (Problem(CURSOR_FOLDER, str(error)),)
    return Plan(log=log, manifest=manifest, problems=problems)
