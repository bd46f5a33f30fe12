"""One directory tree belongs to one store: the locks of two stores would not exclude each other.

A folder is a store's root once it holds ``.wal3/locks``; an empty ``.wal3`` is a claim to become one. Of two processes
that make nested roots at the same time, or die doing so, at least one finds the other:
docs/protocol/stores.md, "The directory store".
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from wal3_core.errors import StoreDeniedError, UnavailableError

OWN_FOLDER = ".wal3"
LOCKS = "locks"
_CLAIMS_MAX = 100
# The folders searched before a store is begun, and before an error says what to do.
_FOLDERS_MAX, _FOLDERS_LISTED_MAX = 1_000_000, 10_000


class Root:
    """A store's root, as far as one process has seen it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = False

    def claim(self) -> None:
        """Make the existing folder a root; see ``claim``."""
        claim(self._folder)
        self._seen = True

    def check_reading(self, folder: str) -> None:
        """Raise StoreDeniedError if a folder below belongs to another store."""
        self._seen = self._seen or is_root(self._folder)
        if not self._seen:
            check_above(self._folder)
        check_between(self._folder, folder, writes=False)

    def check_there(self) -> None:
        """Raise UnavailableError if the root was there, and is not."""
        if self._seen and not is_root(self._folder):
            raise UnavailableError(
                f"store {self._folder}: expected {OWN_FOLDER}/{LOCKS}, which was there, found none: mount its file"
                f" system, or move the folder back; or open the store where it is now"
            )


def is_root(folder: Path) -> bool:
    """Return whether the folder is a store's root."""
    own = folder / OWN_FOLDER
    try:
        return own.is_dir() and (own / LOCKS).is_dir()
    except OSError:
        # A folder that this process cannot read may be a root, if it exists.
        return _is_there(own)


def claim(root: Path) -> None:
    """Make an existing folder a store's root; StoreDeniedError, and no claim left, when it lies in another store."""
    own = root / OWN_FOLDER
    for _ in range(_CLAIMS_MAX):
        if is_root(root):
            return
        own.mkdir(exist_ok=True)
        above = next((folder for folder in root.parents if _is_root_for_good(folder)), None)
        if above is not None:
            _remove_claim(own)
            raise _nested(root, above)
        try:
            (own / LOCKS).mkdir(exist_ok=True)
        except FileNotFoundError:
            # The claim was removed for another root, or for a claim below.
            continue
        return
    raise UnavailableError(f"store {root}: expected to make {own}, found it removed {_CLAIMS_MAX} times")


def check_above(root: Path) -> None:
    """Raise StoreDeniedError for a folder that lies in another store and is not a root itself."""
    if is_root(root):
        return
    above = next(filter(is_root, root.parents), None)
    if above is not None:
        raise _nested(root, above)


def check_below(root: Path) -> None:
    """Raise StoreDeniedError for a folder that is no root yet and has one below it, which it would take over."""
    below = None if is_root(root) else _root_below(root, _FOLDERS_MAX)
    if below is not None:
        raise _holding(root, below)


def _root_below(root: Path, folders_max: float) -> Path | None:
    """Find a root below a folder, in as many folders at most; links are not followed."""
    folders = deque([str(root)])
    while folders and folders_max > 0:
        folders_max -= 1
        # One that others remove meanwhile has none, and one that may not be read is no mistake of this user's.
        with contextlib.suppress(OSError), os.scandir(folders.popleft()) as found:
            for entry in found:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                folder = Path(entry.path).parent
                if entry.name == OWN_FOLDER and folder != root and is_root(folder):
                    return folder
                folders.append(entry.path)
    return None


def check_between(root: Path, path: str, *, writes: bool) -> None:
    """Raise StoreDeniedError if one of the folders from ``root`` to ``path`` is a root itself.

    A caller that ``writes`` must have made its own root before.
    """
    for place in _on_the_way(root, path):
        # A link may lead back to the root.
        if not os.path.lexists(f"{place}/{OWN_FOLDER}") or (folder := Path(place)).resolve() == root:
            continue
        if _is_root_for_good(folder) if writes else is_root(folder):
            raise _holding(root, folder)


def without_links(root: Path, path: str) -> str:
    """Return a folder's path without symbolic links; StoreDeniedError when they lead out of the store."""
    if not any(map(os.path.islink, _on_the_way(root, path))):
        return path
    try:
        folder = (root / path).resolve()
    except (OSError, RuntimeError) as error:
        raise UnavailableError(f"store {root}: {path}: {error}") from error
    if not folder.is_relative_to(root):
        raise StoreDeniedError(f"store {root}: expected its folders inside, found {root / path} to lead to {folder}")
    return "/".join(folder.relative_to(root).parts)


def _on_the_way(root: Path, path: str) -> Iterator[str]:
    # As text, for speed: this runs for every object.
    place = str(root)
    for name in path.split("/") if path else ():
        place = f"{place}/{name}"
        yield place


def _is_root_for_good(folder: Path) -> bool:
    """Return whether the folder is a root; a mere claim is removed, and its owner has to start again."""
    own = folder / OWN_FOLDER
    return is_root(folder) or (_is_there(own) and not _remove_claim(own))


def _remove_claim(own: Path) -> bool:
    try:
        own.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        # It is a root by now, or this process may not remove it.
        return False
    return True


def _is_there(own: Path) -> bool:
    try:
        own.lstat()
    except OSError:
        return False
    return True


def _nested(root: Path, above: Path) -> StoreDeniedError:
    names = f"{root.relative_to(above).as_posix()}/"
    below = _root_below(above, _FOLDERS_LISTED_MAX)
    mistaken = f"; or {_mistaken(above, below)}" if below is not None else ""
    return StoreDeniedError(
        f"store {root}: expected a folder in no other store, found the store {above}: open {above.as_uri()}; the"
        f" names of its logs begin with {names}{mistaken}"
    )


def _holding(root: Path, below: Path) -> StoreDeniedError:
    mistaken = f"; or {_mistaken(root, below)}" if is_root(root) else ", or begin this store in a folder beside it"
    return StoreDeniedError(
        f"store {root}: expected no other store inside, found {below}: open {below.as_uri()} for the logs below it"
        f"{mistaken}"
    )


def _mistaken(above: Path, below: Path) -> str:
    """Say what to do about a store inside another: the later one is the mistake, if the clock was right."""
    later = max(above, below, key=_made_s)
    return (
        f"{later} was made later, with {min(above, below, key=_made_s)} there: if it is a mistake, end all processes"
        f" that use it, and remove {later / OWN_FOLDER}"
    )


def _made_s(root: Path) -> float:
    try:
        return (root / OWN_FOLDER).stat().st_mtime
    except OSError:
        return 0.0
