"""How many records some keys have: exactly, bounded by as many requests as allowed, or estimated from a few indexes."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wal3_core.errors import MissingError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_hashes import Hashes, hash_keys
from wal3_core.format.key_rollup import FragmentKeys, KeyRollup
from wal3_core.format.manifest import Manifest
from wal3_core.format.snapshot import Pointer
from wal3_core.runtime import each_ahead
from wal3_core.views.keyed.key_reader import NO_ROLLUP, WHOLE_BYTES_MAX, Hit, KeyReader, key_hash, keys_of

if TYPE_CHECKING:
    from wal3_core.views.keyed.reads import KeyMatch, OffsetRange

# A larger file's footer, and its key columns: at most two ranges of them. Or two for its footer, and its row groups.
_REQUESTS_OF_LARGE_FILE = 3
# Places of a range that are looked at for an estimate, one in each piece of it.
_SAMPLES = 32
# Samples that are read at a time: each may hold the keys of a large fragment.
_AHEAD = 8
# Hashes of keys that are seen there.
_HASHES_MAX = 2**20
# Standard deviations from what is expected, within which a figure lies nearly always.
_DEVIATIONS = 3
# An estimate is this close on keys that are evenly spread.
_CLOSE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCount:
    """Bounds of a number of records: at least ``lo``, at most ``hi``, of those below ``next_offset``.

    ``estimate``, between them, is what the number is likely to be if the keys are spread evenly over the log.
    """

    lo: int
    hi: int
    estimate: int
    next_offset: int

    @property
    def exact(self) -> bool:
        """Whether the bounds are one number."""
        return self.lo == self.hi


def count_exactly(keys: KeyReader, match: KeyMatch, offsets: OffsetRange) -> int:
    """Count the records of the keys in a range."""

    def counted(manifest: Manifest, first: int, end: int) -> int:
        hits = keys.hits(match, first, end, manifest)
        return sum(hit.index.count(match, max(begin, first), end) for hit, begin in hits)

    return keys.steady(offsets, counted)


class _Sample(NamedTuple):
    """A read part of the range: its records, how many of them are of the key, by its index or nearly, and its keys."""

    num_records: int
    num_found: float
    hashes: Callable[[], Hashes] | None


class _Unread(NamedTuple):
    """What is not known exactly, the widest first; ``number`` tells equal ones apart."""

    negative: int
    number: int
    pointer: Pointer
    # What a key roll-up says of it.
    sample: _Sample | None


class Bounding:
    """Bounds the number of records of some keys in [start, limit) of one manifest."""

    def __init__(self, keys: KeyReader, match: KeyMatch, start: int, limit: int) -> None:
        self._keys = keys
        self._match = match
        self._start = start
        self._limit = limit
        self._lo = self._hi = 0
        self._hashes = None if match.key is None else key_hash(match.key)
        self._unread: list[_Unread] = []
        self._numbers = count()
        self._samples: list[_Sample] = []

    def bound(self, manifest: Manifest, requests_max: int) -> KeyCount:
        """Make at most ``requests_max`` requests where they tell most; with none, use only what is in memory."""
        self._add(manifest.pointers)
        stays = []
        while self._unread and requests_max > 0:
            unread = heapq.heappop(self._unread)
            cost = _cost(unread.pointer)
            if cost <= requests_max:
                requests_max -= cost
                # One that maintenance has replaced: the bounds hold without it.
                with contextlib.suppress(MissingError):
                    requests_max -= self._look(unread.pointer, requests_max)
                    self._hi += unread.negative
                    continue
            stays.append(unread)
        self._unread += stays
        return self._counted(manifest)

    def estimate(self, manifest: Manifest) -> KeyCount:
        """Look at a few places of the range, where indexes in memory and key roll-ups do not tell enough."""
        self._add(manifest.pointers)
        chosen = {}
        for number in range(_SAMPLES):
            # At random within each piece: what is written in turns must not be met in turns.
            place = (number + self._keys.runtime.jitter()) / _SAMPLES
            offset = self._start + int((self._limit - self._start) * place)
            while (unread := self._at(offset)) is not None and self._goes_down(unread):
                pass
            if unread is not None:
                chosen[unread.number] = unread
        fragments = ((each, each.pointer) for each in chosen.values() if isinstance(each.pointer, FragmentPointer))
        for (unread, _), hit in each_ahead(fragments, self._begin_sample, lambda: _AHEAD):
            if hit is not None:
                self._close(unread)
                self._count(hit)
        return self._counted(manifest)

    def _begin_sample(self, sample: tuple[_Unread, FragmentPointer]) -> Callable[[], Hit | None]:
        wait = self._keys.begin_hit(self._match, sample[1])

        def found() -> Hit | None:
            # One that maintenance has replaced stays: the others say enough.
            with contextlib.suppress(MissingError):
                return wait()
            return None

        return found

    def _close(self, unread: _Unread) -> None:
        self._unread.remove(unread)
        self._hi += unread.negative

    def _at(self, offset: int) -> _Unread | None:
        """Return what covers an offset, if nothing is known of it."""
        covering = (each for each in self._unread if each.pointer.start.offset <= offset < each.pointer.limit.offset)
        return next((each for each in covering if each.sample is None), None)

    def _goes_down(self, unread: _Unread) -> bool:
        """Put what a snapshot holds in its place; False for a fragment, and for a snapshot that is gone."""
        if isinstance(unread.pointer, FragmentPointer):
            return False
        with contextlib.suppress(MissingError):
            self._look(unread.pointer, 1)
            self._close(unread)
            return True
        return False

    def _look(self, pointer: Pointer, requests_left: int) -> int:
        """Read what a pointer stands for, and count that instead; return how many requests it took beside one."""
        keys = self._keys
        if isinstance(pointer, FragmentPointer):
            self._count(keys.begin_hit(self._match, pointer)())
            return 0
        below, known = keys.stores.snapshots.load(pointer).pointers, keys.shared.rollups.get(pointer.path)
        reads = known is None and pointer.depth == 1 and self._hashes is not None and requests_left > 0
        self._add(below, keys.rollup(pointer) if reads else known or NO_ROLLUP)
        return int(reads)

    def _add(self, pointers: Iterable[Pointer], rollup: KeyRollup = NO_ROLLUP) -> None:
        inside = [each for each in pointers if each.start.offset < self._limit and each.limit.offset > self._start]
        fragments = [each for each in inside if isinstance(each, FragmentPointer)]
        known = keys_of(rollup, fragments) if rollup.fragments else {}
        for pointer in inside:
            if isinstance(pointer, FragmentPointer):
                self._add_fragment(pointer, known.get(pointer.path))
            elif (snapshot := self._keys.stores.snapshots.held(pointer)) is not None:
                self._add(snapshot.pointers, self._keys.shared.rollups.get(pointer.path) or NO_ROLLUP)
            else:
                self._leave_unread(pointer, None)

    def _add_fragment(self, pointer: FragmentPointer, known: FragmentKeys | None) -> None:
        """Count what memory has of a fragment; what is left to read is unread."""
        sample = None
        if known is not None and self._hashes is not None:
            hashes, width = known.hashes, self._width(pointer)
            held = known.may_hold_any(self._hashes)
            sample = _Sample(width, width / len(hashes) if held else 0.0, lambda: hashes)
            if not held:
                self._samples.append(sample)
                return
        hit = self._keys.known_hit(self._match, pointer)
        if hit is not None:
            self._count(hit)
        else:
            self._leave_unread(pointer, sample)

    def _leave_unread(self, pointer: Pointer, sample: _Sample | None) -> None:
        width = self._width(pointer)
        self._hi += width
        heapq.heappush(self._unread, _Unread(-width, next(self._numbers), pointer, sample))

    def _width(self, pointer: Pointer) -> int:
        overlap = min(pointer.limit.offset, self._limit) - max(pointer.start.offset, self._start)
        return min(pointer.num_records, overlap)

    def _count(self, hit: Hit) -> None:
        number, index = hit.index.count(self._match, self._start, self._limit), hit.index
        self._lo += number
        self._hi += number
        # Of a part of a fragment, the other keys are not known.
        hashes = partial(hash_keys, index.keys) if hit.numbers is None else None
        self._samples.append(_Sample(self._width(hit.pointer), number, hashes))

    def _counted(self, manifest: Manifest) -> KeyCount:
        guessed = [each.sample for each in self._unread if each.sample is not None]
        unknown = -sum(each.negative for each in self._unread if each.sample is None)
        likely = self._lo + sum(each.num_found for each in guessed)
        if unknown:
            likely = _scaled([*self._samples, *guessed], unknown)
        return KeyCount(
            lo=self._lo,
            hi=self._hi,
            estimate=min(max(round(likely), self._lo), self._hi),
            next_offset=min(self._limit, manifest.next.position.offset),
        )


def _scaled(samples: list[_Sample], unknown: int) -> float:
    """Return how many records are likely to be of the key, in some samples of the log and ``unknown`` other records.

    The rest has it as often as these, where that varies little between them. If it varies, but is what an average key
    would have there, it is taken for an average key. How many keys there are is estimated by Chao's formula, from how
    many were seen in one sample and in two. Source: Chao, "Estimating the population size for capture-recapture data
    with unequal catchability", 1987.
    """
    sampled, found = sum(each.num_records for each in samples), sum(each.num_found for each in samples)
    if not sampled:
        return unknown / 2
    own = found / sampled
    squares = sum((each.num_found - own * each.num_records) ** 2 for each in samples)
    if len(samples) == 1 or (found and _DEVIATIONS * squares**0.5 <= _CLOSE * found):
        return found + unknown * own
    hashes: list[Hashes] = []
    records = 0
    for each in samples:
        if each.hashes is not None and sum(len(some) for some in hashes) < _HASHES_MAX:
            hashes.append(each.hashes())
            records += each.num_records
    times = np.unique(np.concatenate(hashes), return_counts=True)[1] if hashes else np.zeros(0)
    if not len(times):
        return found + unknown * own
    once, twice = int(np.sum(times == 1)), int(np.sum(times == 2))  # noqa: PLR2004 - as the formula has it
    num_keys = len(times) + (once * once / (2 * twice) if twice else once * (once - 1) / 2)
    # Records of a key lie together in as many as a sample has of it.
    average, together = sampled / num_keys, records / int(times.sum())
    if abs(found - average) <= _DEVIATIONS * (average * together) ** 0.5:
        # Of what it has more or less, the less is its own, the more of its records lie together.
        return (sampled + unknown) / num_keys + (found - average) / together
    return found + unknown * own


def _cost(pointer: Pointer) -> int:
    small = not isinstance(pointer, FragmentPointer) or pointer.num_bytes <= WHOLE_BYTES_MAX
    return 1 if small else _REQUESTS_OF_LARGE_FILE
