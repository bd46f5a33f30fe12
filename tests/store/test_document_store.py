"""Small documents are created once and swapped by CAS, whatever the store answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stores import LOG_ID, FaultyStore, damage
from wal3_core.errors import CorruptError, StoreDeniedError, UnavailableError
from wal3_core.format.cursor import BYTES_MAX, Cursor
from wal3_core.format.position import LogPosition
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.document_store import DocumentStore, LoadedDocument
from wal3_core.store.object_store import Etag, ObjectStore, Versioned

PATH = "cursor/reader.json"
FIRST = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="first", generation=1, log_id=LOG_ID)
SECOND = replace(FIRST, writer="second", generation=2)
THIRD = replace(FIRST, writer="third", generation=3)
QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)


def documents(store: ObjectStore) -> DocumentStore[Cursor]:
    return DocumentStore(
        store, shared_runtime(), QUICK, lambda data, what: Cursor.from_bytes(data, what=what), bytes_max=BYTES_MAX
    )


def test_document_is_created_loaded_changed_and_deleted(store: ObjectStore) -> None:
    kept = documents(store)
    assert kept.load(PATH) is None

    created = kept.save(PATH, FIRST, None)
    assert created is not None
    assert kept.load(PATH) == created
    changed = kept.save(PATH, SECOND, created)

    assert changed is not None
    assert replace(changed.document, writer="second") == SECOND
    assert changed.document.writer != created.document.writer
    assert kept.load(PATH) == changed
    kept.delete(PATH)
    kept.delete(PATH)
    assert kept.load(PATH) is None


def test_existing_document_is_not_created_again(store: ObjectStore) -> None:
    kept = documents(store)
    created = kept.save(PATH, FIRST, None)

    assert kept.save(PATH, SECOND, None) is None
    assert kept.load(PATH) == created


def test_change_from_an_outdated_version_is_refused(store: ObjectStore) -> None:
    kept = documents(store)
    created = kept.save(PATH, FIRST, None)
    changed = kept.save(PATH, SECOND, created)

    assert kept.save(PATH, THIRD, created) is None
    assert kept.load(PATH) == changed


def test_change_of_a_deleted_document_does_not_bring_it_back(store: ObjectStore) -> None:
    kept = documents(store)
    created = kept.save(PATH, FIRST, None)
    kept.delete(PATH)

    assert kept.save(PATH, SECOND, created) is None
    assert kept.load(PATH) is None


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict"])
@pytest.mark.parametrize("times", [1, 2])
def test_save_survives_a_fault_and_is_done_once(store: ObjectStore, fault: str, times: int) -> None:
    faulty = FaultyStore(store)
    kept = documents(faulty)

    faulty.fail("create", "cursor/", fault, times=times)
    created = kept.save(PATH, FIRST, None)
    faulty.fail("replace", "cursor/", fault, times=times)
    changed = kept.save(PATH, SECOND, created)

    assert created is not None
    assert changed is not None
    assert documents(store).load(PATH) == changed


@pytest.mark.parametrize("fault", ["unknown", "conflict"])
def test_save_gives_up_after_its_tries_and_says_why(store: ObjectStore, fault: str) -> None:
    faulty = FaultyStore(store)
    faulty.fail("create", "cursor/", fault, times=9)
    cause = {"unknown": "the request was dropped", "conflict": "refused, perhaps as the repetition"}[fault]

    with pytest.raises(UnavailableError, match=f"not known to be saved, after 3 tries: {cause}"):
        documents(faulty).save(PATH, FIRST, None)

    assert documents(store).load(PATH) is None
    assert faulty.fired[fault] == 3


def test_save_that_is_denied_says_so_at_once(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.fail("create", "cursor/", "denied", times=9)

    with pytest.raises(StoreDeniedError):
        documents(faulty).save(PATH, FIRST, None)

    assert faulty.fired["denied"] == 1


def test_change_applied_minutes_later_does_not_undo_later_changes(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    kept = documents(faulty)
    created = kept.save(PATH, FIRST, None)

    faulty.fail("replace", "cursor/", "late")
    changed = kept.save(PATH, SECOND, created)
    later = kept.save(PATH, THIRD, changed)
    faulty.arrive()

    assert kept.load(PATH) == later


def test_unanswered_save_overtaken_by_another_is_refused(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    created, saved = documents(store).save(PATH, FIRST, None), list[LoadedDocument[Cursor] | None]()
    faulty.fail("replace", "cursor/", "unknown")
    faulty.before = lambda kind, _: overtake() if kind == "get" else None

    def overtake() -> None:
        faulty.before = lambda _kind, _path: None
        saved.append(documents(store).save(PATH, THIRD, created))

    assert documents(faulty).save(PATH, SECOND, created) is None
    assert saved == [documents(store).load(PATH)] != [None]


def test_damaged_document_is_an_error_that_names_it(store: ObjectStore) -> None:
    documents(store).save(PATH, FIRST, None)
    damage(store, PATH)

    with pytest.raises(CorruptError, match=PATH):
        documents(store).load(PATH)


def test_damage_in_transit_is_read_again(store: ObjectStore) -> None:
    created = documents(store).save(PATH, FIRST, None)
    assert created is not None

    class DamagingStore(FaultyStore):
        """Flips a bit of the first answer."""

        left = 1

        def get(self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None) -> Versioned:
            found = super().get(path, if_none_match=if_none_match, length_max=length_max)
            assert isinstance(found, Versioned)
            if self.left == 0:
                return found
            self.left -= 1
            return Versioned(found.data[:-1] + b"?", found.etag)

    assert documents(DamagingStore(store)).load(PATH) == created
