"""Names at which there is no sound log to serve, each for another reason: what must hide no log beside them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.stores import LOG_ID, FaultyStore, damage
from wal3_core import LogWriter, StoreDeniedError
from wal3_core.format.paths import MANIFEST
from wal3_core.format.vacancy import Vacancy, VacancyKind
from wal3_core.log.maintain.copy.copier import LogAt, copy
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

# In the order of names the bad one comes first.
BAD, GOOD = "bad", "good"


class Badness(StrEnum):
    """What became of a log."""

    DENIED = "denied"
    DAMAGED = "damaged"
    LOST = "lost"
    COPYING = "copying"
    KEPT = "kept"
    DESTROYED = "destroyed"
    REPLACED = "replaced"


# For tests that take long: the others are repetitions.
BADNESSES = [
    each
    if each in (Badness.DENIED, Badness.DAMAGED, Badness.REPLACED)
    else pytest.param(each, marks=pytest.mark.repeat)
    for each in Badness
]
# What an attempt to serve the name comes to.
KINDS = {
    Badness.DENIED: "StoreDeniedError",
    Badness.DAMAGED: "CorruptError",
    Badness.LOST: "LogNotFoundError",
    Badness.COPYING: "LogNotFoundError",
    Badness.KEPT: "LogNotFoundError",
    Badness.DESTROYED: "LogNotFoundError",
    Badness.REPLACED: None,
}
# At these there is no log, and nothing that an operator has to see to.
VACANT = frozenset({Badness.KEPT, Badness.DESTROYED})


def spoil(store: ObjectStore, badness: Badness) -> None:
    """Make a bad name of the log BAD, in a directory where there is a log GOOD."""
    match badness:
        case Badness.DENIED:
            deny(store, f"{BAD}/manifest")
        case Badness.DAMAGED:
            damage(store, f"{BAD}/{MANIFEST}", 40)
        case Badness.LOST:
            store.delete(f"{BAD}/{MANIFEST}")
        case Badness.COPYING:
            destroy(store, BAD)
            cut_copy_short(store, GOOD, BAD)
        case Badness.KEPT:
            destroy(store, BAD)
            _keep(store)
        case Badness.DESTROYED:
            destroy(store, BAD)
        case Badness.REPLACED:
            replace_log(store)


def deny(store: ObjectStore, folder: str) -> None:
    """Make a folder of a directory store unreadable to every process, also to root: it becomes another store's."""
    (Path(urlsplit(store.url).path) / folder / ".wal3" / "locks").mkdir(parents=True)


def cut_copy_short(store: ObjectStore, source: str, target: str) -> None:
    """Begin to copy a log that has a fragment."""
    faulty = FaultyStore(store)
    faulty.fail("create", "FragmentSeqNo", "denied", times=1_000)
    with pytest.raises(StoreDeniedError):
        copy(LogAt(store, source), LogAt(faulty, target))


def replace_log(store: ObjectStore) -> None:
    """Destroy the log BAD and begin another one of its name."""
    destroy(store, BAD, also_pinned=True)
    LogWriter.create(store, BAD)


def _keep(store: ObjectStore) -> None:
    """Keep the name for a successor, as a migration that was cut short does."""
    names = ManifestStore(log_store(store, BAD), shared_runtime())
    kept = Vacancy(
        kind=VacancyKind.FOLLOWING, log_id=LOG_ID, generation=1, writer="a test", source=f"{store.url}/{GOOD}"
    )
    assert names.swap(kept, names.look()) is not None
