"""What server and clients send each other: JSON objects, each in one text frame of a WebSocket."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

Frame = dict[str, Any]

# Of a frame from a client. A feed reader holds up to 256 messages for each client that is behind.
FRAME_BYTES_MAX = 64 * 1024
ID_CHARS_MAX = 64
# Messages that one publisher has sent, and the server has not answered yet.
UNACKNOWLEDGED_MAX = 1000
# WebSocket close codes.
DONE = 1000
NOT_TEXT = 1003
BAD_FRAME = 1008
FAILED = 1011
FULL = 1013


class BadFrameError(ValueError):
    """What came from the other side is no frame."""


def decoded(text: str) -> Frame:
    """Decode a frame; BadFrameError when it is none."""
    try:
        frame = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"expected JSON, found {text[:80]!r} ({error})") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise BadFrameError(f'expected a JSON object with a "type", found {text[:80]!r}')
    return frame


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def encoded(frame: Frame) -> str:
    """Encode a frame. A message that another program published may hold what JSON does not have: that is replaced."""
    try:
        return _dumped(frame)
    except (TypeError, ValueError):
        return _dumped(_as_json(frame))


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _as_json(value: object) -> object:
    match value:
        case dict():
            return {key if isinstance(key, str) else str(key): _as_json(each) for key, each in value.items()}
        case list():
            return [_as_json(each) for each in value]
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
