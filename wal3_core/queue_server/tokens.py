"""Access tokens: kept as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.runtime.loggers import QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# What the server takes them from, unless a file is named; and what a client sends.
TOKENS_VARIABLE = "WAL3_QUEUE_TOKENS"
TOKEN_VARIABLE = "WAL3_QUEUE_TOKEN"  # noqa: S105 - the name of a variable
_CHARS_MIN = 16
_READ_BY_OTHERS = 0o004


def read_tokens(path: Path) -> list[str]:
    """Return the tokens of a file: one on each line; empty lines and those that begin with # are left out."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        message = f"{path}: expected a file of access tokens, found none that can be read: {type(error).__name__}"
        raise InvalidRequestError(message) from error
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not found:
        message = f"{path}: expected an access token on each line, found none"
        raise InvalidRequestError(message)
    if mode & _READ_BY_OTHERS:
        QUEUE.warning(
            "%s: expected access tokens that only their owner reads, found mode %03o: every user of this machine has"
            " them (chmod 600, and new tokens)",
            path,
            mode & 0o777,
        )
    return found


def split_tokens(text: str) -> list[str]:
    """Return the tokens of a variable: separated by spaces or commas."""
    return text.replace(",", " ").split()


class Tokens:
    """The tokens that a server knows. InvalidRequestError when one is too short, or not printable ASCII."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests: list[bytes] = []
        for number, token in enumerate(tokens, 1):
            if len(token) < _CHARS_MIN or not token.isascii() or not token.isprintable() or " " in token:
                # Not shown: it may be a secret with a slip in it.
                message = (
                    f"access token {number}: expected at least {_CHARS_MIN} printable ASCII characters without spaces,"
                    f" found {len(token)} characters"
                )
                raise InvalidRequestError(message)
            self._digests.append(_digest(token.encode()))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def known(self, authorization: bytes) -> int | None:
        """Return the number of the token in a header ``Bearer TOKEN``; None for an unknown one."""
        scheme, _, token = authorization.partition(b" ")
        given = _digest(token.strip())
        found = None
        # Every one is compared, also after one has fitted.
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(digest, given) and scheme.lower() == b"bearer":
                found = number
        return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
