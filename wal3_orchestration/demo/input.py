"""The demo's input: a repository's history, one log per top-level folder, or a bundled sample."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING

from wal3_core import InvalidRequestError, Message
from wal3_core.model.paths import RESERVED_PARTS
from wal3_core.views.git_history import replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MESSAGES_MAX = 20_000
BODIES_BYTES_MAX = 64 * 2**20
ROOT_LOG = "root"
# The paths and blob ids of the oldest file changes of a public repository (github.com/slatedb/slatedb).
_SAMPLE = "sample/file_changes.jsonl.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Messages by log, and where they come from."""

    origin: str
    messages: Mapping[str, list[Message]]


def read_input(repo: Path | None) -> Input:
    """Read the repository's history, or the sample when there is no repository or no git."""
    if repo is not None:
        try:
            return Input(origin=f"the git history of {repo}", messages=_by_log(replay(repo)))
        except InvalidRequestError as error:
            return Input(origin=f"the bundled sample ({error})", messages=_by_log(_sample()))
    return Input(origin="the bundled sample", messages=_by_log(_sample()))


def log_of(path: bytes) -> str:
    """Name the log a file's changes go to: its top-level folder, with other characters replaced, or ``root``."""
    folder, slash, _ = path.decode(errors="replace").partition("/")
    if not slash:
        return ROOT_LOG
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", folder.lstrip(".")) or "_"
    return f"{name}_" if name in RESERVED_PARTS else name


def _by_log(messages: Iterable[Message]) -> dict[str, list[Message]]:
    logs: dict[str, list[Message]] = {}
    for message in _bounded(messages):
        logs.setdefault(log_of(message.key or b""), []).append(message)
    return logs


def _bounded(messages: Iterable[Message]) -> Iterator[Message]:
    """Take the oldest messages, so that a large repository's history need not fit in memory."""
    left = BODIES_BYTES_MAX
    for message in islice(messages, MESSAGES_MAX):
        left -= len(message.body or b"")
        if left < 0:
            return
        yield message


def _sample() -> Iterator[Message]:
    packed = resources.files("wal3_orchestration.demo").joinpath(_SAMPLE).read_bytes()
    for line in gzip.decompress(packed).splitlines():
        change = json.loads(line)
        blob = change["blob"]
        yield Message(None if blob is None else blob.encode(), change["path"].encode())
