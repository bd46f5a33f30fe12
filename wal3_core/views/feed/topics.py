"""Topics, and the patterns that choose among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import cast

from wal3_core.arguments import make_plain, several, text
from wal3_core.errors import InvalidRequestError

TOPIC_BYTES_MAX = 1024
PATTERNS_MAX = 100
EVERY_TOPIC = ("*",)


def check_topic(value: object, name: str = "topic") -> str:
    """Take a topic from a caller: text of 1 to ``TOPIC_BYTES_MAX`` bytes."""
    topic = text(value, name)
    size = len(topic) if topic.isascii() else len(topic.encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        message = f"{name}: expected text of 1 to {TOPIC_BYTES_MAX} bytes, found {size} bytes: {topic[:80]!r}"
        raise InvalidRequestError(message)
    return topic


@dataclass(frozen=True, slots=True, order=True)
class Levels:
    """A pattern of topics in levels, which ``/`` separates: ``*`` any text within one, ``**`` any number of levels.

    ``?`` is one character and ``[ab]`` one of these, within a level. So ``sensors/*/celsius`` is the celsius of each
    sensor, and ``sensors/**`` all below ``sensors``, and that itself.
    """

    pattern: str

    def __post_init__(self) -> None:
        """Refuse what is no pattern; InvalidRequestError."""
        make_plain(self, pattern=check_topic)
        wrong = [level for level in self.pattern.split("/") if "**" in level and level != _ACROSS]
        if wrong:
            message = f"topics: expected ** alone between two /, found {wrong[0][:80]!r} in {self.pattern[:80]!r}"
            raise InvalidRequestError(message)

    def __str__(self) -> str:
        return self.pattern


_ACROSS = "**"
Pattern = str | Levels


def check_patterns(value: object, name: str = "topics") -> tuple[Pattern, ...]:
    """Take one pattern or several from a caller, as a sorted tuple."""
    given = [value] if isinstance(value, str | Levels) else cast("Iterable[object]", several(value, name))
    patterns = [each if isinstance(each, Levels) else check_topic(each, name) for each in given]
    if not 1 <= len(patterns) <= PATTERNS_MAX or len(set(patterns)) < len(patterns):
        message = f"{name}: expected 1 to {PATTERNS_MAX} different patterns, found {len(patterns)}: {patterns[:4]}"
        raise InvalidRequestError(message)
    return tuple(sorted(patterns, key=lambda each: (isinstance(each, Levels), str(each))))


def topic_filter(patterns: tuple[Pattern, ...]) -> Callable[[str], bool]:
    """Return what tells whether a topic matches one of some patterns.

    In a pattern that is text, ``/`` is a character like any other. Upper and lower case differ.
    """
    if "*" in patterns or Levels(_ACROSS) in patterns:
        return lambda _: True
    # Without alternatives, an empty expression would match an empty text alone: no topic is.
    matches = re.compile("|".join(translate(each) for each in patterns if isinstance(each, str))).fullmatch
    levels = [_level_matcher(each) for each in patterns if isinstance(each, Levels)]

    # Topics repeat: each is matched once.
    @lru_cache(_KNOWN_MAX)
    def takes(topic: str) -> bool:
        return matches(topic) is not None or any(each(topic) for each in levels)

    return takes


def _level_matcher(levels: Levels) -> Callable[[str], bool]:
    """Return what matches a pattern of levels, in time that grows with the topic's levels times the pattern's."""
    # None for any number of levels.
    parts = [None if each == _ACROSS else re.compile(translate(each)).fullmatch for each in levels.pattern.split("/")]

    def matches(topic: str) -> bool:
        # By number, whether so many parts match the levels of the topic so far.
        reached = [True]
        reached += [all(part is None for part in parts[: number + 1]) for number in range(len(parts))]
        for level in topic.split("/"):
            before, reached = reached, [False]
            for number, part in enumerate(parts):
                across = part is None and (before[number + 1] or reached[number])
                reached.append(across or (part is not None and before[number] and part(level) is not None))
        return reached[-1]

    return matches


_KNOWN_MAX = 10_000
