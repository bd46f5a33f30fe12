"""Topics, and the patterns that choose among them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, cast

from wal3_core.arguments import make_plain, several, text
from wal3_core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class TopicFilter:
    """Chooses the topics that match one of some patterns.

    In a pattern that is text, ``/`` is a character like any other. Upper and lower case differ.
    """

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        shell = [each for each in patterns if isinstance(each, str)]
        self._all = "*" in shell or Levels(_ACROSS) in patterns
        # Without alternatives, an empty expression would match an empty text alone: no topic is.
        self._matches = re.compile("|".join(map(translate, shell))).fullmatch
        self._levels = [_Levels(each) for each in patterns if isinstance(each, Levels)]
        # Topics repeat: each is matched once.
        self._known: dict[str, bool] = {}

    def takes(self, topic: str) -> bool:
        """Tell whether a topic is chosen."""
        if self._all:
            return True
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._matches(topic) is not None or any(each.matches(topic) for each in self._levels)
            self._known[topic] = known
        return known


class _Levels:
    """A pattern of levels, ready to be matched in time that grows with the topic's levels times the pattern's."""

    def __init__(self, levels: Levels) -> None:
        # None for any number of levels.
        self._parts = [
            None if each == _ACROSS else re.compile(translate(each)).fullmatch for each in levels.pattern.split("/")
        ]

    def matches(self, topic: str) -> bool:
        # The places in the pattern that some way through the topic has come to.
        places = self._across({0})
        for level in topic.split("/"):
            stays = {place for place in places if place < len(self._parts) and self._parts[place] is None}
            places = self._across(stays | {place + 1 for place in places if self._takes(place, level)})
        return len(self._parts) in places

    def _takes(self, place: int, level: str) -> bool:
        matches = self._parts[place] if place < len(self._parts) else None
        return matches is not None and matches(level) is not None

    def _across(self, places: set[int]) -> set[int]:
        """Add the places behind those that also stand for no level."""
        for place in sorted(places):
            while place < len(self._parts) and self._parts[place] is None:
                place += 1  # noqa: PLW2901 - it goes on
                places.add(place)
        return places


_KNOWN_MAX = 10_000
