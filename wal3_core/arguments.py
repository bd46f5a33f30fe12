"""What callers hand in: checked and made plain before anything is done with it.

A value of a wrong type is the caller's mistake and gets InvalidRequestError, which names the argument: it is
refused where it comes in, never found later in what was stored. Whatever stands for an integer, numpy's and
Arrow's included, becomes a plain one.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
from typing import TYPE_CHECKING, ParamSpec, SupportsIndex, TypeVar

import numpy as np

from wal3_core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    # Takes a value and the name of its argument; returns it plain, or raises InvalidRequestError.
    Check = Callable[[object, str], object]

P = ParamSpec("P")
T = TypeVar("T")
# Ten years; what is longer, or has no end, is as good as that, and no clock or lock takes much more.
SECONDS_MAX = 10 * 365 * 24 * 60 * 60
_SHOWN_MAX = 80


def checked(**checks: Check) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have a function's arguments checked by name when it is called, a generator's too; defaults are not."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        names = tuple(inspect.signature(function).parameters)
        unknown = checks.keys() - set(names)
        assert not unknown, f"{function.__qualname__}: expected checks of {names}, found {sorted(unknown)}"
        by_place = tuple((checks.get(name), name) for name in names)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            plain = [
                value if check is None else check(value, name)
                for value, (check, name) in zip(args, by_place, strict=False)
            ]
            named = {name: checks[name](value, name) if name in checks else value for name, value in kwargs.items()}
            # More than there are names for are Python's to refuse.
            return function(*plain, *args[len(plain) :], **named)  # type: ignore[arg-type]

        return call

    return decorate


def wrong(name: str, expected: str, value: object) -> InvalidRequestError:
    """Say that an argument is not what is expected."""
    try:
        shown = f" {ascii(value)[:_SHOWN_MAX]}" if isinstance(value, str | int | float) else ""
    except ValueError:
        # An integer of more digits than Python writes out.
        shown = ""
    return InvalidRequestError(f"{name}: expected {expected}, found {type(value).__name__}{shown}")


def text(value: object, name: str) -> str:
    """Take a string that can be encoded, as a plain one: half of a surrogate pair is no text."""
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    if type(value) is not str:
        # What stands in the place of one, a member of an Enum, is formatted as something else than what was checked.
        value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            shown = ascii(value)[:_SHOWN_MAX]
            message = f"{name}: expected text that can be encoded, found half of a surrogate pair in {shown}"
            raise InvalidRequestError(message) from None
    return value


def integer(value: object, name: str) -> int:
    """Take whatever stands for an integer; a truth value does not."""
    if type(value) is int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            # An array of many has the method, too.
            pass
    raise wrong(name, "an integer", value)


def number(value: object, name: str) -> float:
    """Take a real number: an integer stays one."""
    if isinstance(value, int | numbers.Real) and not isinstance(value, bool):
        try:
            plain = float(value)
        except OverflowError:
            # An integer or a fraction that is larger than anything that is of use.
            pass
        else:
            return value if type(value) is int else plain
    raise wrong(name, "a number", value)


def seconds(value: object, name: str) -> float:
    """Take a number of seconds that can be compared with others; at most ``SECONDS_MAX``, which infinity comes to."""
    plain = number(value, name)
    if isinstance(plain, float) and math.isnan(plain):
        raise wrong(name, "a number of seconds", value)
    return min(plain, SECONDS_MAX)


def flag(value: object, name: str) -> bool:
    """Take a true or a false."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise wrong(name, "true or false", value)


def record_bytes(value: object, name: str) -> bytes:
    """Take bytes; a buffer that its owner may change is copied, so that what is appended stays what it was."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise wrong(name, "bytes", value)


def function(value: object, name: str) -> object:
    """Take what can be called."""
    if callable(value):
        return value
    raise wrong(name, "a function", value)


def several(value: object, name: str) -> object:
    """Take what can be gone through, and is not one text; what it gives is not looked at yet."""
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes | bytearray | type):
        return value
    raise wrong(name, "several", value)


def instance_of(*kinds: type) -> Check:
    """Take an instance of one of some classes."""

    def check(value: object, name: str) -> object:
        if isinstance(value, kinds):
            return value
        raise wrong(name, " or ".join(kind.__name__ for kind in kinds), value)

    return check


def with_methods(expected: str, *methods: str) -> Check:
    """Take whatever has some methods: ``expected`` says in words what that is."""

    def check(value: object, name: str) -> object:
        if not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in methods):
            return value
        raise wrong(name, expected, value)

    return check


def optional(check: Check) -> Check:
    """Take None, too."""

    def checked_unless_none(value: object, name: str) -> object:
        return None if value is None else check(value, name)

    return checked_unless_none


def make_plain(value: object, **checks: Check) -> None:
    """Check fields of a frozen dataclass that was just made, and put what they come to in their place."""
    for name, check in checks.items():
        object.__setattr__(value, name, check(getattr(value, name), name))
