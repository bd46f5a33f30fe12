"""Errors can be copied and sent from process to process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest

import wal3_core
from wal3_core.errors import ConditionNotMetError, LogError, MissingError, StoreDeniedError
from wal3_core.log.read.reader import FragmentMissingError

ATTRIBUTES = {
    ConditionNotMetError: {"next_offset": 7},
    MissingError: {"path": "p"},
    FragmentMissingError: {"path": "p"},
    StoreDeniedError: {"full": True, "no_bucket": True},
}


def kinds(kind: type[LogError] = LogError) -> Iterator[type[LogError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


def test_every_public_error_is_covered() -> None:
    public = {getattr(wal3_core, name) for name in wal3_core.__all__ if name.endswith("Error")}

    assert public | ATTRIBUTES.keys() <= set(kinds())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("kind", sorted(set(kinds()), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_copied_or_sent_error_keeps_its_message_and_attributes(
    kind: type[LogError], again: Callable[[LogError], LogError]
) -> None:
    """A reader's error about a missing object could not be unpickled, and its pool hung."""
    error = kind("what went wrong", **ATTRIBUTES.get(kind, {}))
    error.add_note("where")

    found = again(error)

    assert (type(found), str(found), vars(found)) == (kind, "what went wrong", vars(error))
