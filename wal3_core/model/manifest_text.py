"""A manifest's JSON, in pieces: a pointer that the manifest before had is neither encoded nor read back again."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from wal3_core.model import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wal3_core.model.snapshot import Pointer


@dataclass(frozen=True, slots=True)
class PointerText:
    """A pointer, and its JSON."""

    pointer: Pointer
    text: bytes


# By path: pointers whose JSON was read back, and gave the same pointer.
KnownTexts = dict[str, PointerText]
NONE_KNOWN: KnownTexts = {}


@dataclass(frozen=True, slots=True)
class ManifestText:
    """The members of a manifest's JSON: those before its pointers, the pointers, and those behind them."""

    opening: bytes
    snapshots: Sequence[PointerText]
    fragments: Sequence[PointerText]
    closing: bytes

    def data(self) -> bytes:
        """Return the manifest's bytes."""
        return strict_json.with_checksum(self._joined(attrgetter("text")))

    def unknown(self, known: KnownTexts) -> bytes:
        """Return its JSON with the mere path, for each pointer whose text is known, in place of that text."""
        return self._joined(lambda each: _name(each) if known.get(each.pointer.path) is each else each.text) + b"}"

    def texts(self) -> KnownTexts:
        """Return the texts of its pointers, to be known once they have been read back."""
        return {each.pointer.path: each for each in (*self.snapshots, *self.fragments)}

    def _joined(self, text: Callable[[PointerText], bytes]) -> bytes:
        snapshots, fragments = b",".join(map(text, self.snapshots)), b",".join(map(text, self.fragments))
        return b'%b,"snapshots":[%b],"fragments":[%b],%b' % (self.opening, snapshots, fragments, self.closing)


def pointer_texts(pointers: Sequence[Pointer], known: Mapping[str, PointerText]) -> tuple[PointerText, ...]:
    """Return the pointers' texts; one is known only for the very object that was encoded before."""
    texts = []
    for pointer in pointers:
        text = known.get(pointer.path)
        if text is None or text.pointer is not pointer:
            text = PointerText(pointer, strict_json.dump(pointer.to_json()))
        texts.append(text)
    return tuple(texts)


def _name(text: PointerText) -> bytes:
    # A path that was read back has no character that JSON escapes.
    return b'"%b"' % text.pointer.path.encode()
