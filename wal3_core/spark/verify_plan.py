"""The driver's part of a verification: it reads a log's manifest and cursors, and makes rows of work for the tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from wal3_core.errors import LogError, LogReplacedError, StoreDeniedError
from wal3_core.fleet.asking import ask
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import Problem, cursor_problems
from wal3_core.model.paths import CURSOR_FOLDER, MANIFEST
from wal3_core.options import ReaderOptions
from wal3_core.runtime import shared_runtime
from wal3_core.spark.columns import batch_of
from wal3_core.spark.cutting import Piece, pieces_of
from wal3_core.spark.verify_task import ROWS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore

_WORK = pa.schema(
    {"task": pa.int64(), "log": pa.string(), "log_id": pa.string(), "pointer": pa.string(), "opened": pa.bool_()}
)


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


def work_table(numbered: Iterable[tuple[int, Piece]]) -> pa.Table:
    """Return the rows of ``verify_task``, each with its task's number; only some pieces are held at a time."""
    rows = (
        (number, piece.log, piece.log_id, json.dumps(piece.pointer.to_json()), piece.opened)
        for number, piece in numbered
    )
    batches = []
    while some := list(islice(rows, ROWS_AT_ONCE)):
        batches.append(batch_of(some, _WORK))
    return pa.Table.from_batches(batches, schema=_WORK)


def _read(store: ObjectStore, log: str) -> Plan:
    manifest = LogReader(store, log, options=ReaderOptions(), runtime=shared_runtime()).manifest()
    try:
        problems = tuple(cursor_problems(store, log, shared_runtime(), manifest))
    except StoreDeniedError as error:
        # What the manifest leads to can still be read back.
        problems = (Problem(CURSOR_FOLDER, str(error)),)
    return Plan(log=log, manifest=manifest, problems=problems)
