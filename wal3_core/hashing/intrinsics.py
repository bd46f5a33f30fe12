"""Operations that numba's Python has no words for: memory by address, and Keccak on a vector of lanes.

A vector is written out as such: nothing depends on a compiler finding out that a loop can become one.
Source of the permutation: FIPS 202, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wal3_core.hashing.layout import BLOCK_WORDS, WORDS

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
Reading = Callable[[int], int]
Writing = Callable[[int, int], None]


def _pointer(builder: Value, address: Value, kind: Value) -> Value:
    return builder.inttoptr(address, kind.as_pointer())


def _reading(kind: Value, result: Value, widen: str | None = None) -> Reading:
    def typed(_: Value, address: Value) -> tuple[Value, Value]:
        def generate(_: Value, builder: Value, __: Value, arguments: Value) -> Value:
            # Unaligned: Arrow's values are of any length.
            read = builder.load(_pointer(builder, arguments[0], kind), align=1)
            return read if widen is None else getattr(builder, widen)(read, _WORD)

        return result(address), generate

    made: Reading = intrinsic(typed)
    return made


def _writing(kind: Value, given: Value) -> Writing:
    def typed(_: Value, address: Value, value: Value) -> tuple[Value, Value]:  # noqa: ARG001 - it has the type given
        def generate(context: Value, builder: Value, __: Value, arguments: Value) -> Value:
            written = arguments[1] if kind is _WORD else builder.trunc(arguments[1], kind)
            builder.store(written, _pointer(builder, arguments[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(address, given), generate

    made: Writing = intrinsic(typed)
    return made


word = _reading(_WORD, types.uint64)
number = _reading(_WORD, types.int64)
short_number = _reading(_INT, types.int64, "sext")
byte = _reading(_BYTE, types.int64, "zext")
put_word = _writing(_WORD, types.uint64)
put_number = _writing(_WORD, types.int64)
put_byte = _writing(_BYTE, types.int64)


def _swapping() -> Reading:
    def typed(_: Value, value: Value) -> tuple[Value, Value]:
        def generate(_: Value, builder: Value, __: Value, arguments: Value) -> Value:
            return builder.bswap(arguments[0])

        return types.uint64(value), generate

    made: Reading = intrinsic(typed)
    return made


# A word with its bytes in the other order.
swapped = _swapping()


def _prefetching() -> Callable[[int], None]:
    def typed(_: Value, address: Value) -> tuple[Value, Value]:
        def generate(context: Value, builder: Value, __: Value, arguments: Value) -> Value:
            kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT, _INT, _INT])
            function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
            # To read, kept in all caches, of data. Of an address without memory, nothing happens.
            builder.call(function, [_pointer(builder, arguments[0], _BYTE), _INT(0), _INT(3), _INT(1)])
            return context.get_dummy_value()

        return types.void(address), generate

    made: Callable[[int], None] = intrinsic(typed)
    return made


# Load what lies at an address into the processor's caches, while the code goes on.
prefetch = _prefetching()


def step(lanes: int) -> Callable[[int, int, int], None]:
    """Make the step of ``lanes`` states: each absorbs a block, then all are permuted.

    Given by address: the states (the first word of each, then the second...); where the block of each lies; a word for
    each of all ones, or of zeros where the state begins with this block, after which it is of all ones.
    """
    vector = ir.VectorType(_WORD, lanes)

    def typed(_: Value, state: Value, sources: Value, masks: Value) -> tuple[Value, Value]:
        def generate(context: Value, builder: Value, __: Value, arguments: Value) -> Value:
            at, sources_at, masks_at = arguments
            places = [
                _pointer(builder, builder.add(at, _WORD(_WORD_BYTES * lanes * place)), vector) for place in range(WORDS)
            ]
            masks_place = _pointer(builder, masks_at, vector)
            mask = builder.load(masks_place, align=_WORD_BYTES * lanes)
            words = [builder.and_(builder.load(place, align=_WORD_BYTES * lanes), mask) for place in places]
            for place, block in enumerate(_blocks(builder, sources_at, lanes)):
                words[place] = builder.xor(words[place], block)
            for place, after in zip(places, _rounds(builder, words, vector), strict=True):
                builder.store(after, place, align=_WORD_BYTES * lanes)
            builder.store(_ones(vector), masks_place, align=_WORD_BYTES * lanes)
            return context.get_dummy_value()

        return types.void(state, sources, masks), generate

    made: Callable[[int, int, int], None] = intrinsic(typed)
    return made


def _blocks(builder: Value, sources: Value, lanes: int) -> list[Value]:
    """Read a block of each lane: the first word of each as a vector, then the second..."""
    vector = ir.VectorType(_WORD, lanes)
    starts = [
        builder.load(_pointer(builder, builder.add(sources, _WORD(_WORD_BYTES * lane)), _WORD)) for lane in range(lanes)
    ]
    words: list[Value] = []
    while len(words) + lanes <= BLOCK_WORDS:
        places = [builder.add(start, _WORD(_WORD_BYTES * len(words))) for start in starts]
        words += _transposed(builder, [builder.load(_pointer(builder, at, vector), align=1) for at in places])
    while len(words) < BLOCK_WORDS:
        column = ir.Constant(vector, ir.Undefined)
        for lane, start in enumerate(starts):
            at = _pointer(builder, builder.add(start, _WORD(_WORD_BYTES * len(words))), _WORD)
            column = builder.insert_element(column, builder.load(at, align=1), _INT(lane))
        words.append(column)
    return words


def _transposed(builder: Value, rows: list[Value]) -> list[Value]:
    """Turn as many vectors as each has words: the first words, then the second words..."""
    count, size = len(rows), 1
    while size < count:
        # Two rows that are ``size`` apart exchange every other run of ``size`` words.
        low = [word + count * (word // size % 2) - size * (word // size % 2) for word in range(count)]
        high = [place + size for place in low]
        for index in range(count):
            if index // size % 2 == 0:
                pair = rows[index], rows[index + size]
                rows[index], rows[index + size] = (_chosen(builder, *pair, places) for places in (low, high))
        size *= 2
    return rows


def _chosen(builder: Value, first: Value, second: Value, places: list[int]) -> Value:
    mask = ir.Constant(ir.VectorType(_INT, len(places)), places)
    return builder.shuffle_vector(first, second, mask)


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
