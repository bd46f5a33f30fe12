"""The row groups of a fragment that is arranged by key: where they are cut, and what the file's metadata says of them.

``<first key>,<0 or 1>,<number of records>,<setsum>`` for each group, joined by ``;``, then ``:<16 hex of the SHA-256
of it>``. The first key is base64 of its first 64 bytes, or ``-`` for none; 1 says that the group before ends with the
same key. So the groups that may hold a key are found without the others, and each is checked on its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.errors import CorruptError
from wal3_core.format.parquet.columns import KEYED, group_setsums
from wal3_core.format.parquet.damage import unreadable
from wal3_core.format.setsum import Setsum

Places = np.ndarray[tuple[int], np.dtype[np.int64]]

KEY_GROUPS = "wal3.key_groups"
# Some three requests' worth of bytes, and some hundred records of half a kilobyte.
GROUP_BYTES = 2**16
# Every reader of the file loads its footer, of some 400 bytes for each group.
GROUPS_MAX = 512
_FIRST_BYTES_MAX = 64
# Beside a record's key and body: its offset, its timestamp, and the lengths of both.
_RECORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """What is said of one group: its first key (None: a record without one), cut off at 64 bytes, and its contents.

    With ``continues`` the group before ends with a record of the same key.
    """

    first: bytes | None
    continues: bool
    num_records: int
    setsum: Setsum

    def may_begin_above(self, key: bytes) -> bool:
        """Whether a record of a key may lie before this group."""
        if self.first is None:
            return False
        if key[:_FIRST_BYTES_MAX] != self.first:
            return key < self.first
        # What follows a first key that was cut off is not known.
        return self.continues or len(self.first) == _FIRST_BYTES_MAX

    def may_begin_below(self, limit: bytes | None) -> bool:
        """Whether a record of a key below a limit may lie in this group or after it."""
        return self.first is None or limit is None or self.first < limit


def span(groups: Sequence[KeyGroup], start: bytes, limit: bytes | None) -> range:
    """Return the numbers of the groups that may hold records of the keys from ``start`` to below ``limit``."""
    low, high = 0, len(groups)
    while low + 1 < high and not groups[low + 1].may_begin_above(start):
        low += 1
    while high > low and not groups[high - 1].may_begin_below(limit):
        high -= 1
    return range(low, high)


def arranged(table: pa.Table) -> pa.Table:
    """Return records in the order of their keys, those without a key first, and of their offsets within a key."""
    return table.take(_order(table))


def is_arranged(table: pa.Table) -> bool:
    """Whether records are in that order."""
    return bool(np.array_equal(_order(table).to_numpy(), np.arange(len(table))))


def _order(table: pa.Table) -> pa.Array:
    named = {"keyed": pc.is_valid(table["key"]), "key": table["key"], "offset": table["offset"]}
    return pc.sort_indices(pa.table(named), sort_keys=[(name, "ascending") for name in named])


def cuts(table: pa.Table) -> list[int]:
    """Return the row at which each group of arranged records begins.

    A group takes about 64 KiB of keys and bodies, more where there would be too many groups. Only a key that fills a
    group alone is divided.
    """
    sizes = np.full(len(table), _RECORD_BYTES, dtype=np.int64)
    for name in ("key", "body"):
        sizes += pc.fill_null(pc.binary_length(table[name]), 0).to_numpy().astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    total = int(starts[-1] + sizes[-1])
    target = max(GROUP_BYTES, -(-total // GROUPS_MAX))
    firsts = np.flatnonzero(~_repeats(table["key"]))
    lengths = np.diff(np.append(starts[firsts], total))
    # The records of a large key go where each begins, those of any other key where the first of them begins.
    begins = np.repeat(np.where(lengths < target, starts[firsts], -1), np.diff(np.append(firsts, len(table))))
    numbers = np.where(begins < 0, starts, begins) // target
    return [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]


def _repeats(keys: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say of each record whether the one before it has the same key."""
    after, before = keys.slice(1), keys.slice(0, len(keys) - 1)
    equal = pc.if_else(pc.is_null(after), pc.is_null(before), pc.fill_null(pc.equal(after, before), fill_value=False))
    return np.concatenate([np.zeros(1, dtype=np.bool_), equal.to_numpy().astype(np.bool_)])


def described(
    keys: pa.ChunkedArray, begins: Sequence[int], setsums: Iterable[Setsum], *, continues: bool = False
) -> tuple[KeyGroup, ...]:
    """Describe the groups of arranged records that begin at some rows; ``continues`` says it of the first of them."""
    repeats = _repeats(keys)
    repeats[0] = continues
    limits = [*begins[1:], len(keys)]
    return tuple(
        KeyGroup(_cut_off(keys[begin].as_py()), bool(repeats[begin]), limit - begin, setsum)
        for begin, limit, setsum in zip(begins, limits, setsums, strict=True)
    )


def _cut_off(key: bytes | None) -> bytes | None:
    return None if key is None else key[:_FIRST_BYTES_MAX]


def groups_as_text(groups: Iterable[KeyGroup]) -> str:
    """Return the metadata of some groups."""
    text = ";".join(
        f"{'-' if each.first is None else base64.b64encode(each.first).decode()},"
        f"{int(each.continues)},{each.num_records},{each.setsum.hexdigest()}"
        for each in groups
    )
    return f"{text}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def groups_from(text: bytes) -> tuple[KeyGroup, ...]:
    """Return the groups; ValueError when the text is not what was written."""
    rows = text.rpartition(b":")[0].decode("ascii").split(";")
    if len(rows) > GROUPS_MAX:
        raise ValueError(f"{len(rows)} groups, where {GROUPS_MAX} may be")
    groups = tuple(_group_from(row) for row in rows)
    if groups_as_text(groups).encode() != text:
        raise ValueError(f"text with another checksum, or of another form, {text[:40]!r}")
    return groups


def _group_from(row: str) -> KeyGroup:
    first, continues, num_records, setsum = row.split(",")
    # A number of so many digits is read in no time.
    if not 0 < len(num_records) <= len(str(2**63)):
        raise ValueError(f"a group of {num_records[:40]} records")
    key = None if first == "-" else base64.b64decode(first, validate=True)
    try:
        found = Setsum.from_hexdigest(setsum)
    except CorruptError as error:
        raise ValueError(str(error)) from error
    return KeyGroup(key, continues == "1", int(num_records), found)


def sum_of(groups: Iterable[KeyGroup]) -> Setsum:
    """Add up what the groups hold."""
    return Setsum.total(each.setsum for each in groups)


def in_log_order(table: pa.Table) -> pa.Table:
    """Return a file's rows as any other fragment has them."""
    return table.take(pc.sort_indices(table["offset"])).select([name for name in KEYED if name in table.column_names])


def check_groups(table: pa.Table, groups: Sequence[KeyGroup], what: str) -> None:
    """Check everything that is said of the groups of which a table consists, in the file's order."""
    begins = check_order(table, groups, what)
    for begin, group, found in zip(begins, groups, group_setsums(table, begins), strict=True):
        if found != group.setsum:
            raise CorruptError(
                f"{what}: the file's records are not those that were appended: row {begin}: expected a group with the"
                f" setsum {group.setsum}, found {found}"
            )


def check_order(table: pa.Table, groups: Sequence[KeyGroup], what: str) -> Sequence[int]:
    """Check the order of the keys, and what is said of them; return the row at which each group begins."""
    begins = [0, *accumulate(each.num_records for each in groups)]
    counted = begins.pop() == len(table) and all(each.num_records for each in groups)
    if not counted or not is_arranged(table):
        raise unreadable(what, f"expected {len(groups)} groups of records in the order of their keys, found others")
    setsums = (each.setsum for each in groups)
    if described(table["key"], begins, setsums, continues=groups[0].continues) != tuple(groups):
        raise unreadable(what, f"expected the keys that {KEY_GROUPS} says, found others")
    return begins
