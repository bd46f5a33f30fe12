"""The code that is compiled: records of Arrow columns to sums of their digests, a few records side by side.

Plain functions in the subset of Python that numba compiles; ``building.py`` does that, in a process of its own. A lane
takes the next record as soon as its own is done, so records of mixed lengths need no order. Before them stands what
numba's Python has no words for: memory by address, and Keccak on a vector of lanes. A vector is written out as such:
nothing depends on a compiler finding out that a loop can become one. The permutation: FIPS 202, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wal3_core.hashing.calling import BLOCK_BYTES, BLOCK_WORDS, DAMAGED, DONE, LANE_WORDS, STATE_WORDS, UNEVEN
from wal3_core.hashing.target import LANES

# Places in the job, a table of 64-bit words whose address the code is given. Addresses are those of Arrow's
# buffers, so no record is copied; 0 is no buffer. The number of records, and the addresses of their offsets and times:
COUNT, OFFSETS, TIMESTAMPS = 0, 1, 2
# The first row of each group of records, how many groups there are, and eight sums for each.
BEGINS, GROUPS, SUMS = 3, 4, 5
SCRATCH = 6
# Places where the two binary columns begin; without keys, the bounds are at address 0.
KEYS, BODIES = 7, 13
# Places within a column: count + 1 bounds, of eight bytes each if wide, else of four; the values, and how many bytes
# they are; a bit for each row that has a value, and which bit the first row's is.
BOUNDS, WIDE, VALUES, VALUES_BYTES, VALID, FIRST_BIT = range(6)
# Places within a lane: its row, its group, the length of what it hashes, how much of that was absorbed, of the row's
# key and body where each begins, and their lengths; the key's length is -1 when there is none.
ROW, GROUP, ITEM_BYTES, ABSORBED, KEY_AT, KEY_BYTES, BODY_AT, BODY_BYTES = range(LANE_WORDS)
_PLAIN_HEAD_BYTES, _KEYED_HEAD_BYTES = 16, 28
_LANE_BYTES = 8 * LANE_WORDS
# Places in the scratch: where the states' masks begin, then where the blocks lie, the lanes, the blocks that are put
# together, and which record and group come next. Vectors first: they stay aligned.
_MASKS = 8 * STATE_WORDS * LANES
_SOURCES = _MASKS + 8 * LANES
_LANES = _SOURCES + 8 * LANES
_BLOCKS = _LANES + _LANE_BYTES * LANES
_NEXT_ROW = _BLOCKS + BLOCK_BYTES * LANES
_NEXT_GROUP = _NEXT_ROW + 8
_DIGEST_WORDS = 4
# Bytes of records: of longer ones, a processor loads most of what is needed next by itself.
_PREFETCH_BYTES_MAX = 2**18
_LINE_BYTES = 64
_CONSTANTS = (
    *(0x0000000000000001, 0x0000000000008082, 0x800000000000808A, 0x8000000080008000, 0x000000000000808B),
    *(0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008A, 0x0000000000000088),
    *(0x0000000080008009, 0x000000008000000A, 0x000000008000808B, 0x800000000000008B, 0x8000000000008089),
    *(0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800A, 0x800000008000000A),
    *(0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008),
)
# By x, then by y.
_ROTATIONS = ((0, 36, 3, 41, 18), (1, 44, 10, 45, 2), (62, 6, 43, 15, 61), (28, 55, 25, 21, 56), (27, 20, 39, 8, 14))
# Twice as much code, and fewer moves between registers and memory.
_ROUNDS_AT_ONCE = 2
_WORD_BYTES = 8
_WORD, _BYTE, _INT = ir.IntType(64), ir.IntType(8), ir.IntType(32)
# What LLVM's builder takes and gives has no types that a checker knows.
Value = Any


def _operation(signature: Value, build: Callable[..., Value]) -> Callable[..., int]:
    """Make an operation of this signature; ``build`` gets LLVM's builder and the arguments."""

    # numba takes the parameters from what is wrapped.
    @wraps(build)
    def typed(_: Value, *__: Value) -> tuple[Value, Value]:
        def generate(context: Value, builder: Value, _: Value, arguments: Value) -> Value:
            made = build(builder, *arguments)
            return context.get_dummy_value() if signature.return_type == types.void else made

        return signature, generate

    made: Callable[..., int] = intrinsic(typed)
    return made


def _pointer(builder: Value, address: Value, kind: Value) -> Value:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Value, address: Value, kind: Value) -> Value:
    # Unaligned, as it is stored: Arrow's values are of any length.
    return builder.load(_pointer(builder, address, kind), align=1)


def _store(builder: Value, address: Value, value: Value) -> None:
    builder.store(value, _pointer(builder, address, value.type), align=1)


def _prefetch(builder: Value, address: Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT, _INT, _INT])
    function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
    # To read, kept in all caches, of data. Of an address without memory, nothing happens.
    builder.call(function, [_pointer(builder, address, _BYTE), _INT(0), _INT(3), _INT(1)])


_TO_WORD, _TO_NUMBER = types.uint64(types.int64), types.int64(types.int64)
_OF_WORD, _OF_NUMBER = types.void(types.int64, types.uint64), types.void(types.int64, types.int64)
word = _operation(_TO_WORD, lambda builder, at: _load(builder, at, _WORD))
number = _operation(_TO_NUMBER, lambda builder, at: _load(builder, at, _WORD))
short_number = _operation(_TO_NUMBER, lambda builder, at: builder.sext(_load(builder, at, _INT), _WORD))
byte = _operation(_TO_NUMBER, lambda builder, at: builder.zext(_load(builder, at, _BYTE), _WORD))
put_word = _operation(_OF_WORD, _store)
put_number = _operation(_OF_NUMBER, _store)
put_byte = _operation(_OF_NUMBER, lambda builder, at, value: _store(builder, at, builder.trunc(value, _BYTE)))
# A word with its bytes in the other order.
swapped = _operation(types.uint64(types.uint64), lambda builder, value: builder.bswap(value))
# Load what lies at an address into the processor's caches, while the code goes on.
prefetch = _operation(types.void(types.int64), _prefetch)


def _absorb_and_permute(builder: Value, at: Value, sources_at: Value, masks_at: Value) -> None:
    """Step the lanes' states: each absorbs a block, then all are permuted.

    Given by address: the states (the first word of each, then the second...); where the block of each lies; a word for
    each of all ones, or of zeros where the state begins with this block, after which it is of all ones.
    """
    vector, aligned = ir.VectorType(_WORD, LANES), _WORD_BYTES * LANES
    places = [_pointer(builder, builder.add(at, _WORD(aligned * place)), vector) for place in range(STATE_WORDS)]
    masks_place = _pointer(builder, masks_at, vector)
    mask = builder.load(masks_place, align=aligned)
    words = [builder.and_(builder.load(place, align=aligned), mask) for place in places]
    for place, block in enumerate(_blocks(builder, sources_at)):
        words[place] = builder.xor(words[place], block)
    for place, after in zip(places, _rounds(builder, words, vector), strict=True):
        builder.store(after, place, align=aligned)
    builder.store(_ones(vector), masks_place, align=aligned)


def _blocks(builder: Value, sources: Value) -> list[Value]:
    """Read a block of each lane: the first word of each as a vector, then the second..."""
    vector = ir.VectorType(_WORD, LANES)
    starts = [
        builder.load(_pointer(builder, builder.add(sources, _WORD(_WORD_BYTES * lane)), _WORD)) for lane in range(LANES)
    ]
    words: list[Value] = []
    for place in range(BLOCK_WORDS):
        column = ir.Constant(vector, ir.Undefined)
        for lane, start in enumerate(starts):
            at = _pointer(builder, builder.add(start, _WORD(_WORD_BYTES * place)), _WORD)
            column = builder.insert_element(column, builder.load(at, align=1), _INT(lane))
        words.append(column)
    return words


def _ones(vector: Value) -> Value:
    return ir.Constant(vector, [2**64 - 1] * vector.count)


def _rounds(builder: Value, before: list[Value], vector: Value) -> list[Value]:
    constants = ir.GlobalVariable(builder.module, ir.ArrayType(_WORD, len(_CONSTANTS)), "wal3_round_constants")
    constants.initializer = ir.Constant(constants.value_type, _CONSTANTS)
    constants.global_constant, constants.linkage = True, "internal"
    entry, loop, done = (builder.block, *(builder.append_basic_block(name) for name in ("rounds", "done")))
    builder.branch(loop)
    builder.position_at_end(loop)
    count = builder.phi(_WORD)
    words = [builder.phi(vector) for _ in before]
    after: list[Value] = words
    for index in range(_ROUNDS_AT_ONCE):
        place = builder.gep(constants, [_WORD(0), builder.add(count, _WORD(index))])
        after = _round(builder, after, _spread(builder, builder.load(place), vector))
    following = builder.add(count, _WORD(_ROUNDS_AT_ONCE))
    for phi, first, again in zip((count, *words), (_WORD(0), *before), (following, *after), strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(again, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, _WORD(len(_CONSTANTS))), loop, done)
    builder.position_at_end(done)
    return after


def _spread(builder: Value, value: Value, vector: Value) -> Value:
    alone = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT(0))
    mask = ir.Constant(ir.VectorType(_INT, vector.count), [0] * vector.count)
    return builder.shuffle_vector(alone, ir.Constant(vector, ir.Undefined), mask)


def _round(builder: Value, words: list[Value], constant: Value) -> list[Value]:
    """Do one round on 25 vectors, word x of row y at 5y + x."""
    vector = words[0].type
    sums = [_all_of(builder, words[x::5]) for x in range(5)]
    mixed = [builder.xor(sums[(x + 4) % 5], _rotated(builder, sums[(x + 1) % 5], 1)) for x in range(5)]
    moved = {
        (y, (2 * x + 3 * y) % 5): _rotated(builder, builder.xor(words[5 * y + x], mixed[x]), _ROTATIONS[x][y])
        for x in range(5)
        for y in range(5)
    }
    ones = _ones(vector)
    after = []
    for y in range(5):
        for x in range(5):
            inverted = builder.xor(moved[(x + 1) % 5, y], ones)
            after.append(builder.xor(moved[x, y], builder.and_(inverted, moved[(x + 2) % 5, y])))
    after[0] = builder.xor(after[0], constant)
    return after


def _all_of(builder: Value, words: list[Value]) -> Value:
    total = words[0]
    for each in words[1:]:
        total = builder.xor(total, each)
    return total


def _rotated(builder: Value, value: Value, by: int) -> Value:
    if by == 0:
        return value
    left, right = (ir.Constant(value.type, [bits] * value.type.count) for bits in (by, 64 - by))
    return builder.or_(builder.shl(value, left), builder.lshr(value, right))


# ---------------------------------------------------------------------- records, by lanes

step = _operation(types.void(types.int64, types.int64, types.int64), _absorb_and_permute)


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
    """Add the digests of a table's records to the sums of their groups."""
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
        step(scratch, scratch + _SOURCES, scratch + _MASKS)
        for index in range(LANES):
            left -= ended(job, scratch + _LANES + _LANE_BYTES * index, scratch + 8 * index)
    return DONE


COMPILED = (
    *(field, bound, has_value, column_bytes, begin_record, copy_piece),
    *(write_head, make_block, next_block, prefetch_ahead, add_digest, judge, clear, is_busy, ended),
)
