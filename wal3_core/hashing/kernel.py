"""The code that is compiled: records of Arrow columns to sums of their digests, a few records side by side.

Plain functions in the subset of Python that numba compiles; ``building.py`` does that, in a process of its own. A lane
takes the next record as soon as its own is done, so records of mixed lengths need no order.
"""

from __future__ import annotations

from wal3_core.hashing.intrinsics import (
    byte,
    number,
    prefetch,
    put_byte,
    put_number,
    put_word,
    short_number,
    step,
    swapped,
    word,
)
from wal3_core.hashing.layout import (
    ABSORBED,
    BEGINS,
    BLOCK_BYTES,
    BLOCK_WORDS,
    BODIES,
    BODY_AT,
    BODY_BYTES,
    BOUNDS,
    COUNT,
    DAMAGED,
    DONE,
    FIRST_BIT,
    GROUP,
    GROUPS,
    ITEM_BYTES,
    KEY_AT,
    KEY_BYTES,
    KEYS,
    LANE_WORDS,
    OFFSETS,
    ROW,
    SCRATCH,
    SUMS,
    TIMESTAMPS,
    UNEVEN,
    VALID,
    VALUES,
    VALUES_BYTES,
    WIDE,
    WORDS,
)
from wal3_core.hashing.target import LANES

_PLAIN_HEAD_BYTES, _KEYED_HEAD_BYTES = 16, 28
_LANE_BYTES = 8 * LANE_WORDS
# Of the scratch, where the states' masks begin, then where the blocks lie, the lanes, the blocks that are put together,
# and which record and group come next. Vectors first: they stay aligned.
_MASKS = 8 * WORDS * LANES
_SOURCES = _MASKS + 8 * LANES
_LANES = _SOURCES + 8 * LANES
_BLOCKS = _LANES + _LANE_BYTES * LANES
_NEXT_ROW = _BLOCKS + BLOCK_BYTES * LANES
_NEXT_GROUP = _NEXT_ROW + 8
_DIGEST_WORDS = 4
# Of longer records, a processor loads most of what is needed next by itself.
_PREFETCH_BYTES_MAX = 2**18
_LINE_BYTES = 64
_step = step(LANES)


def field(table: int, place: int) -> int:
    """Read a word of a table."""
    return number(table + 8 * place)


def bound(job: int, column: int, row: int) -> int:
    """Return where the value of a row begins."""
    bounds = field(job, column + BOUNDS)
    if field(job, column + WIDE) != 0:
        return number(bounds + 8 * row)
    return short_number(bounds + 4 * row)


def has_value(job: int, column: int, row: int) -> bool:
    """Whether a row has a value, not a null."""
    if field(job, column + BOUNDS) == 0:
        return False
    bits = field(job, column + VALID)
    if bits == 0:
        return True
    place = field(job, column + FIRST_BIT) + row
    return (byte(bits + (place >> 3)) >> (place & 7)) & 1 != 0


def column_bytes(job: int, column: int) -> tuple[int, int]:
    """Return the bytes of a column's values and of its longest one; -1 if its bounds are no bounds."""
    count = field(job, COUNT)
    if field(job, column + BOUNDS) == 0:
        return 0, 0
    longest, begin = 0, bound(job, column, 0)
    low, falls = begin, begin < 0
    for row in range(1, count + 1):
        limit = bound(job, column, row)
        falls = falls or limit < begin
        longest = max(longest, limit - begin)
        begin = limit
    if falls or begin > field(job, column + VALUES_BYTES):
        return -1, -1
    return begin - low, longest


def begin_record(job: int, lane: int, row: int, group: int) -> None:
    """Let a lane take a record."""
    keyed = has_value(job, KEYS, row)
    key_at = bound(job, KEYS, row) if keyed else 0
    key_bytes = bound(job, KEYS, row + 1) - key_at if keyed else -1
    # What a null lies over is not part of the record.
    there = has_value(job, BODIES, row)
    body_at = bound(job, BODIES, row) if there else 0
    body_bytes = bound(job, BODIES, row + 1) - body_at if there else 0
    head_bytes = _KEYED_HEAD_BYTES + key_bytes + 1 if keyed else _PLAIN_HEAD_BYTES
    put_number(lane + 8 * ROW, row)
    put_number(lane + 8 * GROUP, group)
    put_number(lane + 8 * ITEM_BYTES, head_bytes + body_bytes)
    put_number(lane + 8 * ABSORBED, 0)
    put_number(lane + 8 * KEY_AT, field(job, KEYS + VALUES) + key_at)
    put_number(lane + 8 * KEY_BYTES, key_bytes)
    put_number(lane + 8 * BODY_AT, field(job, BODIES + VALUES) + body_at)
    put_number(lane + 8 * BODY_BYTES, body_bytes)


def copy_piece(block: int, absorbed: int, source: int, begin: int, length: int) -> None:
    """Copy what lies in the block of a piece that begins at a place of the item."""
    place, limit = max(begin, absorbed), min(begin + length, absorbed + BLOCK_BYTES)
    while place + 8 <= limit:
        put_word(block + place - absorbed, word(source + place - begin))
        place += 8
    while place < limit:
        put_byte(block + place - absorbed, byte(source + place - begin))
        place += 1


def write_head(job: int, lane: int, block: int) -> None:
    """Write what stands before the key and the body."""
    row, key_bytes = field(lane, ROW), field(lane, KEY_BYTES)
    at = block
    if key_bytes >= 0:
        put_number(at, -1)
        for index in range(4):
            put_byte(block + 24 + index, (key_bytes >> (24 - 8 * index)) & 255)
        at += 8
    put_word(at, swapped(word(field(job, OFFSETS) + 8 * row)))
    put_word(at + 8, swapped(word(field(job, TIMESTAMPS) + 8 * row)))


def make_block(job: int, lane: int, block: int, absorbed: int) -> None:
    """Write the block of a lane's item behind what is absorbed: the first, the last, or one with a part of the key."""
    item_bytes = field(lane, ITEM_BYTES)
    for place in range(BLOCK_WORDS):
        put_number(block + 8 * place, 0)
    if absorbed == 0:
        write_head(job, lane, block)
    key_bytes = field(lane, KEY_BYTES)
    if key_bytes >= 0:
        copy_piece(block, absorbed, field(lane, KEY_AT), _KEYED_HEAD_BYTES, key_bytes)
        mark = _KEYED_HEAD_BYTES + key_bytes - absorbed
        if 0 <= mark < BLOCK_BYTES:
            put_byte(block + mark, 1 if has_value(job, BODIES, field(lane, ROW)) else 0)
    body_bytes = field(lane, BODY_BYTES)
    copy_piece(block, absorbed, field(lane, BODY_AT), item_bytes - body_bytes, body_bytes)
    if item_bytes < absorbed + BLOCK_BYTES:
        put_byte(block + item_bytes - absorbed, 6)
        put_byte(block + BLOCK_BYTES - 1, byte(block + BLOCK_BYTES - 1) ^ 128)


def next_block(job: int, lane: int, block: int) -> int:
    """Return where the next block of a lane's item lies, which counts as absorbed; ``block`` if it is put together."""
    absorbed, item_bytes, body_bytes = field(lane, ABSORBED), field(lane, ITEM_BYTES), field(lane, BODY_BYTES)
    within = absorbed - (item_bytes - body_bytes)
    source = field(lane, BODY_AT) + within
    prefetch_ahead(source, item_bytes)
    put_number(lane + 8 * ABSORBED, absorbed + BLOCK_BYTES)
    if within < 0 or within + BLOCK_BYTES > body_bytes:
        make_block(job, lane, block, absorbed)
        return block
    return source


def prefetch_ahead(source: int, item_bytes: int) -> None:
    """Load the same part of the record that the lane will probably take next, as if all were of one length."""
    ahead = LANES * item_bytes
    if ahead <= _PREFETCH_BYTES_MAX:
        prefetch(source + ahead)
        prefetch(source + ahead + _LINE_BYTES)


def add_digest(job: int, lane: int, state: int) -> None:
    """Add a lane's digest to the sums of its record's group."""
    sums = field(job, SUMS) + 64 * field(lane, GROUP)
    for place in range(_DIGEST_WORDS):
        digest = number(state + 8 * LANES * place)
        put_number(sums + 16 * place, number(sums + 16 * place) + (digest & 0xFFFFFFFF))
        put_number(sums + 16 * place + 8, number(sums + 16 * place + 8) + ((digest >> 32) & 0xFFFFFFFF))


def judge(job: int) -> int:
    """Say whether the columns can be read, and whether lanes pay."""
    bodies, longest_body = column_bytes(job, BODIES)
    keys, longest_key = column_bytes(job, KEYS)
    if bodies < 0 or keys < 0:
        return DAMAGED
    whole = (bodies + keys) // BLOCK_BYTES + field(job, COUNT)
    longest = (longest_body + longest_key) // BLOCK_BYTES + 1
    # Full lanes take a third of hashlib's time; in a lane alone, a record takes somewhat longer than by hashlib.
    return UNEVEN if whole < 2 * longest else DONE


def clear(scratch: int) -> None:
    """Begin with free lanes and the first record; a lane's state begins with its record."""
    for index in range(LANES):
        put_number(scratch + _LANES + _LANE_BYTES * index + 8 * ROW, -1)
    put_number(scratch + _NEXT_ROW, 0)
    put_number(scratch + _NEXT_GROUP, 0)


def is_busy(job: int, scratch: int, index: int) -> bool:
    """Whether a lane has a record; a free one takes the next, if there is one."""
    lane = scratch + _LANES + _LANE_BYTES * index
    if field(lane, ROW) >= 0:
        return True
    row, group, groups = number(scratch + _NEXT_ROW), number(scratch + _NEXT_GROUP), field(job, GROUPS)
    if row == field(job, COUNT):
        return False
    while group + 1 < groups and number(field(job, BEGINS) + 8 * (group + 1)) <= row:
        group += 1
    begin_record(job, lane, row, group)
    put_number(scratch + _MASKS + 8 * index, 0)
    put_number(scratch + _NEXT_ROW, row + 1)
    put_number(scratch + _NEXT_GROUP, group)
    return True


def ended(job: int, lane: int, state: int) -> int:
    """Return 1 if a lane's record was absorbed: its digest is added then, and the lane is free. Else 0."""
    if field(lane, ROW) < 0 or field(lane, ABSORBED) <= field(lane, ITEM_BYTES):
        return 0
    add_digest(job, lane, state)
    put_number(lane + 8 * ROW, -1)
    return 1


def sum_records(job: int) -> int:
    """Add the digests of a table's records to the sums of their groups; see layout.py for ``job`` and the result."""
    judged = judge(job)
    if judged != DONE:
        return judged
    scratch, left = field(job, SCRATCH), field(job, COUNT)
    clear(scratch)
    while left > 0:
        for index in range(LANES):
            # A free lane absorbs whatever it put together last.
            source = scratch + _BLOCKS + BLOCK_BYTES * index
            if is_busy(job, scratch, index):
                source = next_block(job, scratch + _LANES + _LANE_BYTES * index, source)
            put_number(scratch + _SOURCES + 8 * index, source)
        _step(scratch, scratch + _SOURCES, scratch + _MASKS)
        for index in range(LANES):
            left -= ended(job, scratch + _LANES + _LANE_BYTES * index, scratch + 8 * index)
    return DONE


COMPILED = (
    *(field, bound, has_value, column_bytes, begin_record, copy_piece),
    *(write_head, make_block, next_block, prefetch_ahead, add_digest, judge, clear, is_busy, ended),
)
