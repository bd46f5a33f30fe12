"""Parsing of store URLs: a URL with a part that would be ignored is refused."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import SplitResult, parse_qsl, urlsplit

from wal3_core.errors import InvalidRequestError

# Options that say how requests are sent, not which store it is.
TIMEOUT_OPTIONS = frozenset({"timeout_s", "request_timeout_s"})
RATE_OPTIONS = frozenset({"reads_per_s", "writes_per_s"})
REMOTE_OPTIONS = TIMEOUT_OPTIONS | RATE_OPTIONS
TUNING_OPTIONS = REMOTE_OPTIONS | {"etags", "lock_wait_s"}
_OPTIONS = {
    "file": frozenset({"lock_wait_s"}),
    "memory": frozenset[str](),
    "s3": REMOTE_OPTIONS | {"endpoint", "region", "profile", "etags"},
    "gs": REMOTE_OPTIONS,
    "az": REMOTE_OPTIONS,
}
# No store's name has a NUL, and without the characters that urlsplit drops the URL would name another store.
_CONTROL = re.compile("[\0-\x1f]|%00")


# The text before the @ of a host, but not in a directory's path. A secret key may have slashes in it.
_USER = re.compile(r"(?<=:)(?<!^file:)(?<!^memory:)[^\s?#&]*@")
NO_SECRETS = "expected no user or password, which errors would print (keys are given by the environment or a profile)"


def without_secrets(url: str) -> str:
    """Return a URL to print: without what stands before an @."""
    return _USER.sub("//…@", url)


def split_store_url(url: str) -> SplitResult:
    """Split a store's URL; InvalidRequestError if a part of it would be ignored, or is a secret."""
    shown = without_secrets(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequestError(f"store URL: expected a valid URL, found {shown!r} ({error})") from error
    if "@" in parts.netloc or (":" in parts.netloc and "@" in parts.path):
        raise InvalidRequestError(f"store URL: {NO_SECRETS}, found some before the @ of {shown!r}")
    if parts.fragment or _CONTROL.search(url):
        message = f"store URL: expected control characters and # in a name as %0A and %23, and no NUL, found {shown!r}"
        raise InvalidRequestError(message)
    return parts


def options_of_url(url: str) -> dict[str, str]:
    """Return the options of a store's URL; InvalidRequestError for one that is unknown, empty, or repeated.

    Without it the URL would name another store: ``?endpoint=`` Amazon's own bucket of that name.
    """
    parts = split_store_url(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    times = Counter(name for name, _ in pairs)
    known = _OPTIONS.get(parts.scheme, times.keys())
    for name, value in pairs:
        if name not in known:
            raise _refusal(url, parts.scheme, f"the unknown {name!r}")
        if not value.strip():
            raise _refusal(url, parts.scheme, f"{name} without a value")
        if times[name] > 1:
            raise _refusal(url, parts.scheme, f"{name} {times[name]} times")
    return dict(pairs)


def named_in(url: str) -> dict[str, str]:
    """Return the options in a store's own URL, unchecked, for any kind of store."""
    return dict(parse_qsl(url.partition("?")[2]))


def _refusal(url: str, scheme: str, found: str) -> InvalidRequestError:
    known = ", ".join(sorted(_OPTIONS.get(scheme, ())))
    expected = f"no option but {known}, each once and with a value," if known else "no options"
    # Without the options, which may be secret.
    address = url.partition("?")[0]
    return InvalidRequestError(f"store URL: expected {expected} on {scheme}, found {found} on {address!r}")
