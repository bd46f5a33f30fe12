"""The mutations themselves: they take hold everywhere, leave no trace, and never miss in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations import Mutation, StaleMutationError, applied
from wal3_core.storage.backends.local import LocalStore, _etag
from wal3_core.storage.object_store import FolderStore, check_path

LOCAL = "wal3_core.storage.backends.local"
ETAG = Mutation("etag of nothing", LOCAL + ":_etag", "sha256(data)", "sha256(b'')")


def test_mutation_reaches_whoever_imported_the_function_and_is_gone_afterwards() -> None:
    sound = _etag(b"bytes")

    with applied(ETAG):
        mutated = _etag(b"bytes")
        assert mutated == _etag(b"others")

    assert mutated != sound
    assert _etag(b"bytes") == sound


def test_mutation_reaches_methods_properties_and_context_managers() -> None:
    split = 'address, *options = self._store.url.split("?", 1)'
    url = Mutation(
        "no URL", "wal3_core.storage.object_store:FolderStore.url", split, "address, options = 'nowhere', []"
    )
    locked = Mutation("no lock", LOCAL + ":LocalStore._locked", "fcntl.LOCK_EX", "fcntl.LOCK_NB")
    path = Mutation("any path", "wal3_core.storage.object_store:check_path", "return path", "return path + '?'")

    with applied(url), applied(locked), applied(path):
        assert FolderStore(LocalStore(Path("/")), "a/").url == "nowhere/a"
        assert check_path("a") == "a?"

    assert check_path("a") == "a"


@pytest.mark.parametrize(
    ("mutation", "expected"),
    [
        (Mutation("m", LOCAL + ":_etag", "sha512", "sha256"), "once, found it 0 times"),
        (Mutation("m", LOCAL + ":_etag", "data", "b''"), "once, found it 2 times"),
        (Mutation("m", LOCAL + ":_etag", "hashlib.sha256", "hashlib .sha256"), "found none"),
        (Mutation("m", LOCAL + ":_no_such", "data", "b''"), "found nothing of that name"),
        (Mutation("m", LOCAL + ":LocalStore", "data", "b''"), "a function, found type"),
        (Mutation("m", LOCAL + ":_etag", "hashlib.sha256(data)", "_no_such(data)"), "found _no_such"),
        (Mutation("m", LOCAL + ":LocalStore.url", "self._root.as_uri", "self._no_such.as_uri"), "found self._no_such"),
        (
            Mutation("m", LOCAL + ":LocalStore._locked", "@contextlib", "@ctx"),
            "decorators to stay",
        ),
    ],
)
def test_mutation_that_does_not_fit_is_refused(mutation: Mutation, expected: str) -> None:
    with pytest.raises(StaleMutationError, match=expected), applied(mutation):
        raise AssertionError
