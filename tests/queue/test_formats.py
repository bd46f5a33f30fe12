"""A queue's records are read and written as by earlier versions: a difference means that the format has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wal3_core.errors import CorruptError
from wal3_core.views.queue.checkpoint import decode, restore, table_of
from wal3_core.views.queue.encoding import (
    DEAD,
    LEASED,
    NEVER,
    NO_TOKEN,
    PENDING,
    STATE,
    VALUE,
    Meta,
    StateRecord,
    ValueHeader,
    id_key,
    part_key,
    state_body,
    state_record,
    value_body,
    value_header,
)
from wal3_core.views.queue.operations import QueueDefinition
from wal3_core.views.queue.queue_state import DeadLetter, Lease, QueueState, Row

GOLDEN = Path(__file__).parent.parent / "golden"
CREATED_MS = 1_700_000_000_000
TOKEN = bytes(range(8))

# The deadline, when it was enqueued, priority and dedupe key, and the length of the header that says so.
VALUES = {
    "a value that is due at once": ValueHeader(CREATED_MS, CREATED_MS, 100, None, 1),
    "a value that is due later": ValueHeader(CREATED_MS + 90_000, CREATED_MS + 30_000, 100, None, 6),
    "a value with a deadline before the queue": ValueHeader(5_000, CREATED_MS + 7, 100, None, 14),
    "a value with a priority": ValueHeader(CREATED_MS + 1, CREATED_MS + 2, 0, None, 5),
    "a value with a dedupe key": ValueHeader(CREATED_MS + 2**40, CREATED_MS, 255, b"k" * 255, 270),
}
STATES = {
    "a pending item": StateRecord(PENDING, CREATED_MS, 3, CREATED_MS + 9, NEVER, NO_TOKEN),
    "a leased item": StateRecord(LEASED, 5_000, 1, NEVER, CREATED_MS + 60_000, TOKEN),
    "a dead letter": StateRecord(DEAD, CREATED_MS, 2**32 - 1, NEVER, NEVER, NO_TOKEN),
}
METAS = {
    "a queue": Meta(broker=NO_TOKEN, definition=1, last_id=0, created_ms=CREATED_MS, now_ms=CREATED_MS, floors_ms={}),
    "a queue with a checkpoint": Meta(
        broker=TOKEN,
        definition=2**40,
        last_id=2**63,
        created_ms=CREATED_MS,
        now_ms=CREATED_MS + 5,
        floors_ms={0: 5_000, 100: CREATED_MS, 255: -1},
        as_of=2**50,
        parts=(2**50 + 1, 2**50 + 2),
    ),
}
DEFINITIONS = {
    "a definition": QueueDefinition(),
    "a definition with limits": QueueDefinition(lease_s=0.001, max_deliveries=5, value_bytes_max=8 << 20, items_max=9),
}


def written() -> dict[str, str]:
    """Return all records as this version writes them."""
    bodies: dict[str, bytes] = {"the key of a value": id_key(VALUE, 258), "the key of a state": id_key(STATE, 2**63)}
    bodies["the key of a part"] = part_key(2**50, 1)
    for name, value in VALUES.items():
        bodies[name] = value_body(
            b"value", value.deadline_ms, value.enqueued_ms, CREATED_MS, value.priority, value.dedupe_key
        )
    bodies |= {name: state_body(state) for name, state in STATES.items()}
    bodies |= {name: meta.to_bytes() for name, meta in METAS.items()}
    bodies |= {name: definition.to_bytes() for name, definition in DEFINITIONS.items()}
    return {name: body.hex() for name, body in bodies.items()}


def test_records_are_written_as_by_earlier_versions() -> None:
    assert written() == json.loads((GOLDEN / "queue_records.json").read_text())


def test_records_of_earlier_versions_are_read() -> None:
    bodies = {
        name: bytes.fromhex(text) for name, text in json.loads((GOLDEN / "queue_records.json").read_text()).items()
    }

    for name, value in VALUES.items():
        assert value_header(bodies[name], CREATED_MS, name) == value
        assert bodies[name][value.length :] == b"value"
    assert {name: state_record(bodies[name], name) for name in STATES} == STATES
    assert {name: Meta.from_bytes(bodies[name], what=name) for name in METAS} == METAS
    assert {name: QueueDefinition.from_bytes(bodies[name], what=name) for name in DEFINITIONS} == DEFINITIONS


def checkpointed() -> QueueState:
    """Make the state of which golden/queue_checkpoint.parquet is the checkpoint."""
    state = QueueState(QueueDefinition(), 1, CREATED_MS)
    rows = [Row(CREATED_MS + at % 3, at, 100 + at, 10 * at, at % 2, CREATED_MS - at, NEVER) for at in range(1, 7)]
    state.name(rows[0], b"k")
    state.name(rows[5], b"\x00\xff")
    for row, priority in zip(rows[:4], (0, 100, 100, 255), strict=True):
        state.add_pending(row, priority)
    state.hold(Lease(rows[4], 7, CREATED_MS + 60_000, TOKEN))
    state.dead[6] = DeadLetter(rows[5]._replace(requeued_ms=CREATED_MS + 1), 100)
    state.num_bytes = sum(row.length for row in rows)
    return state


def test_checkpoint_of_an_earlier_version_is_read() -> None:
    expected, found = checkpointed(), QueueState(QueueDefinition(), 1, CREATED_MS)

    table = decode([(GOLDEN / "queue_checkpoint.parquet").read_bytes()], 6, what="a checkpoint")
    assert table.equals(table_of(expected))
    restore(found, table, ())

    for name in ("leased", "dead", "dedupe_keys", "ids_by_key", "num_bytes"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.head(9) == expected.head(9)


@pytest.mark.parametrize("name", ["a value that is due later", "a pending item", "a queue with a checkpoint"])
def test_record_that_is_cut_short_is_refused(name: str) -> None:
    body = bytes.fromhex(written()[name])

    for length in range(5):
        with pytest.raises(CorruptError, match="a record"):
            if name in VALUES:
                value_header(body[:length], CREATED_MS, "a record")
            elif name in STATES:
                state_record(body[: -1 - length], "a record")
            else:
                Meta.from_bytes(body[: -1 - length], what="a record")
