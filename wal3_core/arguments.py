"""Checks of callers' arguments, and their conversion to plain Python types.

A value of a wrong type raises InvalidRequestError, which names the argument, before it can reach storage. What is never
stored, as a runtime or the options of a call, is not checked.
Integer types of numpy and Arrow become plain integers.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import sys
from collections.abc import Callable
from typing import ParamSpec, SupportsIndex, TypeVar

from wal3_core.errors import InvalidRequestError

# Takes a value and the name of its argument; returns a plain value, or raises InvalidRequestError.
Check = Callable[[object, str], object]

P = ParamSpec("P")
T = TypeVar("T")
# Ten years; longer and infinite times are cut to this, since clocks and locks take little more.
SECONDS_MAX = 10 * 365 * 24 * 60 * 60
_SHOWN_MAX = 80


def checked(**checks: Check) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check a function's arguments by name when it is called, also for a generator; defaults are not checked."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        names = tuple(inspect.signature(function).parameters)
        unknown = checks.keys() - set(names)
        assert not unknown, f"{function.__qualname__}: expected checks of {names}, found {sorted(unknown)}"
        placed = tuple((place, name, checks[name]) for place, name in enumerate(names) if name in checks)
        first = placed[0][0] if placed else len(names)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            # Surplus arguments are left for Python to refuse.
            if len(args) > first:
                plain = list(args)
                for place, name, check in placed:
                    if place >= len(args):
                        break
                    plain[place] = check(args[place], name)
                args = tuple(plain)  # type: ignore[assignment]  # checked as P says
            for name, value in kwargs.items():
                if name in checks:
                    kwargs[name] = checks[name](value, name)
            return function(*args, **kwargs)

        return call

    return decorate


def wrong(name: str, expected: str, value: object) -> InvalidRequestError:
    """Make the error for an argument that is not as expected."""
    try:
        shown = f" {ascii(value)[:_SHOWN_MAX]}" if isinstance(value, str | int | float) else ""
    except ValueError:
        # An integer of more digits than Python formats.
        shown = ""
    return InvalidRequestError(f"{name}: expected {expected}, found {type(value).__name__}{shown}")


def text(value: object, name: str) -> str:
    """Take a string that can be encoded, as a plain ``str``; half of a surrogate pair is refused."""
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    if type(value) is not str:
        # A subclass, such as a member of a str Enum, may format as something else than its value.
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
    """Take an integer of any type, except bool."""
    if type(value) is int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            # An array of several elements has the method, too.
            pass
    raise wrong(name, "an integer", value)


def number(value: object, name: str) -> float:
    """Take a real number; an integer stays an integer."""
    if isinstance(value, int | numbers.Real) and not isinstance(value, bool):
        try:
            plain = float(value)
        except OverflowError:
            # An integer or a fraction too large for a float.
            pass
        else:
            return value if type(value) is int else plain
    raise wrong(name, "a number", value)


def seconds(value: object, name: str) -> float:
    """Take a number of seconds; NaN is refused, and anything above ``SECONDS_MAX``, also infinity, becomes that."""
    plain = number(value, name)
    if isinstance(plain, float) and math.isnan(plain):
        raise wrong(name, "a number of seconds", value)
    return min(plain, SECONDS_MAX)


def flag(value: object, name: str) -> bool:
    """Take a bool."""
    if isinstance(value, bool):
        return value
    # A value of numpy's class exists only if numpy was imported.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    raise wrong(name, "true or false", value)


def record_bytes(value: object, name: str) -> bytes:
    """Take bytes; a buffer that its owner may change is copied."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise wrong(name, "bytes", value)


def positive(value: object, name: str) -> int:
    """Take an integer from 1."""
    plain = integer(value, name)
    if plain < 1:
        raise wrong(name, "an integer from 1", value)
    return plain


def function(value: object, name: str) -> object:
    """Take a callable."""
    if callable(value):
        return value
    raise wrong(name, "a function", value)


def several(value: object, name: str) -> object:
    """Take an iterable that is no text, bytes or class; its elements are not checked."""
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes | bytearray | type):
        return value
    raise wrong(name, "an iterable", value)


def instance_of(*kinds: type) -> Check:
    """Take an instance of one of the classes."""

    def check(value: object, name: str) -> object:
        if isinstance(value, kinds):
            return value
        raise wrong(name, " or ".join(kind.__name__ for kind in kinds), value)

    return check


def with_methods(expected: str, *methods: str) -> Check:
    """Take an object with the given methods; ``expected`` is its description in the error."""

    def check(value: object, name: str) -> object:
        if not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in methods):
            return value
        raise wrong(name, expected, value)

    return check


def optional(check: Check) -> Check:
    """Take None as well."""

    def checked_unless_none(value: object, name: str) -> object:
        return None if value is None else check(value, name)

    return checked_unless_none


def make_plain(value: object, /, **checks: Check) -> None:
    """Check fields of a frozen dataclass that was just made, and replace them by their plain values."""
    for name, check in checks.items():
        object.__setattr__(value, name, check(getattr(value, name), name))
