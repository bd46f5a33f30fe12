"""The library's loggers: named under ``wal3``, silent until the program configures logging, free of secrets.

docs/observability.md lists the messages. Nothing is logged under a lock of a log: a handler is the program's code. An
error that it raises is printed, and goes no further.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from wal3_core.runtime.port import Runtime


P = ParamSpec("P")

# A name and a password before a host, also in the option of a URL; the value of an option that may be a signature.
_LOGIN = re.compile(r"(//|%2[Ff]%2[Ff])[^/\s?#@%]*(?::|%3[Aa])[^/\s?#@]*?(@|%40)")
_SECRET = re.compile(r"([?&](?:sig|token|[\w-]*(?:signature|secret|password|credential|key))=)[^&\s]+", re.IGNORECASE)
# The time after a warning in which others of its kind are only debugging messages.
_QUIET_S = 60.0


def without_secrets(text: str) -> str:
    """Replace passwords and signatures in the URLs of a text by ``***``."""
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***\2", text))


class _Redaction(logging.Filter):
    """Keeps secrets out of messages; called only for messages that are logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message, and let it pass."""
        text = record.getMessage()
        clean = without_secrets(text)
        if clean != text:
            record.msg, record.args = clean, None
        return True


def shielded(report: Callable[P, None]) -> Callable[P, None]:
    """Return the same call of a program's code, but an error that it raises is printed instead."""

    @wraps(report)
    def call(*args: P.args, **named: P.kwargs) -> None:
        try:
            report(*args, **named)
        except Exception:  # noqa: BLE001 - a record may be durable by now: its append must not fail, or wait for ever
            with contextlib.suppress(Exception):
                sys.excepthook(*sys.exc_info())

    return call


def _logger(name: str) -> logging.Logger:
    made = logging.getLogger(name)
    made.addFilter(_Redaction())
    made.handle = shielded(made.handle)  # type: ignore[method-assign]  # of this logger alone
    return made


# Without a handler of its own, a program's warnings would be printed to stderr.
logging.getLogger("wal3").addHandler(logging.NullHandler())

STORE = _logger("wal3.store")
WAITING = _logger("wal3.store.waiting")
WRITER = _logger("wal3.writer")
READER = _logger("wal3.reader")
COLLECT = _logger("wal3.collect")
MAINTAIN = _logger("wal3.maintain")
QUEUE = _logger("wal3.queue")
HASHING = _logger("wal3.hashing")
SPARK = _logger("wal3.spark")


class Seldom:
    """Warns at most once a minute; what comes between is a debugging message, and counted in the next warning."""

    def __init__(self, runtime: Runtime, logger: logging.Logger) -> None:
        self._runtime = runtime
        self._logger = logger
        self._until_s = float("-inf")
        self._left_out = 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a message; from any thread. Two at once may both be warnings."""
        now_s = self._runtime.monotonic_s()
        if now_s < self._until_s:
            self._left_out += 1
            self._logger.debug(text, *arguments)
            return
        left_out, self._left_out, self._until_s = self._left_out, 0, now_s + _QUIET_S
        if left_out:
            text, arguments = f"{text} (and %d times since the last such warning)", (*arguments, left_out)
        self._logger.warning(text, *arguments)
