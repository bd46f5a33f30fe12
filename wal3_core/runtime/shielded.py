"""Calls of a program's code that reports: its errors go no further, since the library's work does not depend on it."""

from __future__ import annotations

import contextlib
import sys
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")


def shielded(report: Callable[P, None]) -> Callable[P, None]:
    """Return the same call, but an error that it raises is printed instead."""

    @wraps(report)
    def call(*args: P.args, **named: P.kwargs) -> None:
        try:
            report(*args, **named)
        except Exception:  # noqa: BLE001 - a record may be durable by now: its append must not fail, or wait for ever
            with contextlib.suppress(Exception):
                sys.excepthook(*sys.exc_info())

    return call
