"""The shape of an exercise's load: a pure function of a seed, the time, and a process's count of records."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from wal3_core.options import KIB

# Duration of a shape; then the seed chooses another one.
_SLOT_S = 3.0
# Part of a slot that a burst, or an idle spell, takes.
_SPELL_SHARE = 0.4
# The rate at the beginning of a slot and in its rest, as factors of the mean rate; the mean of all is about 1.
_SHAPES = ((1.0, 1.0), (1.0, 1.0), (0.2, 0.2), (1.5, 1.5), (5.0, 0.1), (0.0, 0.8))
_SMALL_BYTES = KIB
_MIDDLE_BYTES = 64 * KIB
# Shares of the records that are small, have one byte, have exactly the limit, or are of a middle size.
_SMALL_SHARE, _ONE_BYTE_SHARE, _LIMIT_SHARE, _MIDDLE_SHARE = 0.88, 0.02, 0.001, 0.09
_CONDITIONAL_SHARE = 0.1
# Share of the conditional appends that name an offset at which the log does not end.
_WRONG_SHARE = 0.2
# Share of the logs, the last ones, that all processes write.
_SHARED_SHARE = 1 / 8
# The first life is short, so that a short exercise has restarts, too.
_FIRST_LIFE_S, _LIFE_S = (2.0, 4.0), (4.0, 20.0)


def draw(*parts: object) -> float:
    """Return a number in [0, 1) that is a function of the parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendChoice:
    """One append: the log's number, the body's bytes, and whether it names the log's next offset, or a wrong one."""

    log: int
    num_bytes: int
    conditional: bool
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How long a writing process lives, and whether it is killed then or closes its logs."""

    seconds: float
    killed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """A load: ``rate_per_s`` records a second on average, by all processes together, into ``logs`` logs.

    No body is larger than ``body_bytes_max``; all together are about ``bytes_per_s`` a second at most.
    """

    seed: int
    rate_per_s: float
    logs: int
    processes: int
    body_bytes_max: int
    bytes_per_s: float

    def rate_at(self, at_s: float) -> float:
        """Return the records a second of each process at a time since the start: steps, bursts and idle spells."""
        slot, rest = divmod(at_s, _SLOT_S)
        begin, end = _SHAPES[int(draw(self.seed, "shape", int(slot)) * len(_SHAPES))]
        return self.rate_per_s / self.processes * (begin if rest < _SLOT_S * _SPELL_SHARE else end)

    def choice(self, process: int, life: int, number: int, *, bytes_left: float) -> AppendChoice:
        """Return what a process appends as its ``number``-th record; a body fits into ``bytes_left`` or is small."""
        seed = (self.seed, process, life, number)
        condition = draw(*seed, "condition")
        return AppendChoice(
            log=self._log(process, draw(*seed, "log")),
            num_bytes=self._num_bytes(draw(*seed, "kind"), draw(*seed, "size"), bytes_left),
            conditional=condition < _CONDITIONAL_SHARE,
            wrong=condition < _CONDITIONAL_SHARE * _WRONG_SHARE,
        )

    def life(self, process: int, life: int, *, kills: bool) -> Life:
        """Return how one life of a writing process ends: by turns killed, and with its logs closed."""
        least, most = _LIFE_S if life else _FIRST_LIFE_S
        seconds = least + draw(self.seed, "life", process, life) * (most - least)
        return Life(seconds=seconds, killed=kills and (process + life) % 2 == 0)

    def _log(self, process: int, chance: float) -> int:
        """Return one of the process's own logs, of which a few get most records, or a shared one."""
        own = max(self.logs - math.ceil(self.logs * _SHARED_SHARE), 0)
        mine: list[int] = [*range(process % self.processes, own, self.processes), *range(own, self.logs)]
        return mine[int(len(mine) * chance * chance)]

    def _num_bytes(self, kind: float, chance: float, bytes_left: float) -> int:
        most = self.body_bytes_max
        small = int(min(_SMALL_BYTES, most) ** chance)
        if kind < _SMALL_SHARE:
            return small
        kind -= _SMALL_SHARE
        if kind < _ONE_BYTE_SHARE:
            return 1
        kind -= _ONE_BYTE_SHARE
        if kind < _MIDDLE_SHARE:
            found = int(min(_MIDDLE_BYTES, most) ** chance)
        else:
            found = most if kind < _MIDDLE_SHARE + _LIMIT_SHARE else int(most**chance)
        return found if found <= bytes_left else small


def body_of(seed: int, process: str, number: int, num_bytes: int) -> bytes:
    """Return the body of a process's record: bytes that no two records share."""
    return hashlib.shake_128(f"{seed}/{process}/{number}".encode()).digest(num_bytes)


def checksum_of(body: bytes) -> str:
    """Return a checksum of a body that does not depend on the library: 16 hex digits."""
    return hashlib.blake2b(body, digest_size=8).hexdigest()
