"""Topics, and the patterns that choose among them."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING, cast

from wal3_core.arguments import several, text
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


def check_patterns(value: object, name: str = "topics") -> tuple[str, ...]:
    """Take one pattern or several from a caller, as a sorted tuple."""
    given = [value] if isinstance(value, str) else cast("Iterable[object]", several(value, name))
    patterns = tuple(sorted(check_topic(each, name) for each in given))
    if not 1 <= len(patterns) <= PATTERNS_MAX or len(set(patterns)) < len(patterns):
        message = f"{name}: expected 1 to {PATTERNS_MAX} different patterns, found {len(patterns)}: {patterns[:4]}"
        raise InvalidRequestError(message)
    return patterns


class TopicFilter:
    """Chooses the topics that match one of some shell patterns: ``*`` any text, ``?`` one character, ``[ab]`` one of.

    ``/`` is a character like any other. Upper and lower case differ.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._all = "*" in patterns
        self._matches = re.compile("|".join(map(translate, patterns))).match
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
            known = self._known[topic] = self._matches(topic) is not None
        return known


_KNOWN_MAX = 10_000
