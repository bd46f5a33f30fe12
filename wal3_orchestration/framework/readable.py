"""What is shown, as people read it: sizes and durations beside numbers that Dagster plots, texts without folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

from rich.filesize import decimal

_UNITS = ((24 * 60 * 60, "day"), (60 * 60, "hour"), (60, "minute"))
# From this many of a unit on, no fraction of it is shown.
_WHOLE_MIN = 10
_SECONDS = re.compile(r"\b(\d{3,15}) s\b")
_BYTES = re.compile(r"\b(\d{4,18}) bytes\b")
# The URL or path of an object, of which the last part says which one it is.
_FOLDERS = re.compile(r"[^\s()'\"`,;]*/(?=[^\s()'\"`,;/]+)")


def size(num_bytes: float) -> str:
    """Format a size: ``1.3 MB``."""
    return decimal(int(num_bytes))


def duration(seconds: float) -> str:
    """Format how long something takes or has lasted: ``26 days``, ``1.5 hours``, ``42 s``."""
    for unit_s, noun in _UNITS:
        if seconds >= unit_s:
            count = round(seconds / unit_s, None if seconds >= _WHOLE_MIN * unit_s else 1)
            return f"{count:g} {noun}" if count == 1 else f"{count:g} {noun}s"
    return f"{seconds:.0f} s" if seconds >= _WHOLE_MIN else f"{seconds:.3g} s"


def text_of(label: str, value: float) -> str:
    """Format a number by its label: bytes as a size, seconds as a duration."""
    if "bytes" in re.split(r"[ _]", label):
        return size(value)
    if label.endswith(("_s", " (s)")):
        return duration(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether Dagster plots a value; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def beside(metadata: Mapping[str, object]) -> dict[str, str]:
    """Return labels and values for people, for the sizes and durations among numbers that plot."""
    said: dict[str, str] = {}
    for label, value in metadata.items():
        if not is_number(value) or not value:
            continue
        plain = label.replace("_", " ")
        named = re.sub(r" (s|\(s\))$", "", re.sub(r"(?<!\S)bytes(?!\S)", "size", plain))
        if named != plain:
            said[named] = text_of(label, value)
    return said


def shortened(text: str) -> str:
    """Write seconds and bytes in a sentence for people, and leave out the folders of objects."""

    def short(found: re.Match[str]) -> str:
        folders: str = found[0]
        return "…/" if "://" in folders or "=" in folders else folders

    said = _FOLDERS.sub(short, text)
    said = _SECONDS.sub(lambda found: duration(int(found[1])), said)
    return _BYTES.sub(lambda found: size(int(found[1])), said)
