"""What the compiled code is given: the address of a table of 64-bit words, at these places. It allocates nothing.

Addresses are those of Arrow's buffers, so no record is copied. ``0`` is no buffer.
"""

from __future__ import annotations

# How many records there are, and the addresses of their offsets and timestamps, as 64-bit words.
COUNT, OFFSETS, TIMESTAMPS = 0, 1, 2
# The first row of each group of records, how many groups there are, and eight sums for each.
BEGINS, GROUPS, SUMS = 3, 4, 5
SCRATCH = 6
# Where each of the two binary columns begins; no keys: address 0 as its bounds.
KEYS, BODIES = 7, 13
JOB_WORDS = 19

# Of a column: count + 1 bounds, of eight bytes each if wide, else of four; the values, and how many bytes they are; a
# bit for each row that has a value, and which bit the first row's is.
BOUNDS, WIDE, VALUES, VALUES_BYTES, VALID, FIRST_BIT = range(6)

# What it returns. With any but DONE, nothing was summed.
DONE = 0
# Bounds that fall, or lie beyond the values: the caller's own check reports that.
DAMAGED = 1
# One record is so long that most lanes would wait for it.
UNEVEN = 2

LANES_MAX = 8
WORDS = 25
# Of each lane: its row, its group, the length of what it hashes, how much of that was absorbed, of the row's key and
# body where each begins, and their lengths; the key's length is -1 when there is none.
LANE_WORDS = 8
ROW, GROUP, ITEM_BYTES, ABSORBED, KEY_AT, KEY_BYTES, BODY_AT, BODY_BYTES = range(LANE_WORDS)
BLOCK_BYTES = 136
BLOCK_WORDS = 17
# Memory of the code's own: for each lane a state, its mask, where its next block lies, what is named above, and a block
# that is put together; then which record and which group come next.
SCRATCH_WORDS = (WORDS + LANE_WORDS + BLOCK_WORDS + 2) * LANES_MAX + 2
# Vectors are read and written at multiples of their size.
SCRATCH_ALIGNMENT = 8 * LANES_MAX
