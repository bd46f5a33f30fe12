"""What must hold of the appends in a story of chains: each is in one place, and named ones are not doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.belongings import TABLE, Fate, Operation, Thing
from tests.faults.history import REFUSED, Append
from tests.faults.oracle import BEFORE, Oracle
from wal3_core import Message

if TYPE_CHECKING:
    from tests.faults.chain_ledger import ChainLedger


def check_appends(ledger: ChainLedger) -> None:
    """Each append is in one place at most, and in one if it was acknowledged; none that was refused is."""
    # A record of a copy lies where it lies in its source.
    held = {place for life in ledger.names.lives.values() for place in enumerate(life.records, 1)}
    places = Counter(record for _, record in held if record != BEFORE)
    named = {row for attempt in ledger.named.attempts for row in attempt.rows}
    doubled = [record for record, count in places.items() if count > 1 and record not in named]
    assert not doubled, f"doubled: {doubled}"
    known = {record for append in ledger.appends for record in append.records}
    strange = places.keys() - known - named
    assert not strange, f"no caller appended: {strange}"
    for append in ledger.appends:
        _check_append(append, places)


def _check_append(append: Append, places: Collection[Message]) -> None:
    present = [record in places for record in append.records]
    assert all(present) or not any(present), f"torn: {append}"
    assert all(present) or not append.durable, f"lost: {append}"
    assert not any(present) or append.outcome not in REFUSED, f"refused, and there: {append}"


def check_named(ledger: ChainLedger) -> None:
    """Each named append is at most once in each log with those before it, and there if an install returned."""
    rows_of = dict[tuple[str, str], set[tuple[Message, ...]]]()
    for attempt in ledger.named.attempts:
        rows_of.setdefault(attempt.name, set()).add(attempt.rows)
    for log_id, life in ledger.names.lives.items():
        if not _knows_names(life):
            continue
        counts = Counter(ledger.history(life))
        for name, variants in rows_of.items():
            found = sum(max(counts[row] for row in rows) for rows in variants)
            torn = [rows for rows in variants if len({counts[row] for row in rows}) > 1]
            assert not torn or _lacks(life), f"{life.log}: torn: {torn}"
            assert found <= 1, f"{life.log}: {name} is there {found} times"
        for attempt in ledger.named.attempts:
            if attempt.log_id == log_id and attempt.outcome == "made":
                assert all(counts[row] for row in attempt.rows), f"{life.log}: lost: {attempt}"


def _lacks(life: Oracle) -> bool:
    """Whether a life lacks records of before it began that its source has dropped."""
    return life.is_copy and (life.begins > 1 or bool(life.dropped))


def _knows_names(life: Oracle) -> bool:
    """Whether the writers' cursors came with the records, all the way."""
    while life.origin is not None:
        if not (life.with_cursors if life.is_copy else TABLE[Operation.MIGRATE][Thing.WRITER].fate is Fate.KEPT):
            return False
        life = life.origin
    return True
