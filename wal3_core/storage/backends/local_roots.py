"""One directory tree belongs to one store: the locks of two stores would not exclude each other.

A folder is a store's root once it holds ``.wal3/locks``. A path belongs to the nearest root above it.
So a root is not made below another one, and a store keeps off what lies below a root inside its own.

Making one takes two steps, so that of two processes that make roots in one another at the same time,
or die over it, at least one finds the other. First ``.wal3`` is made: a claim. Then the folders above
are looked at; then ``.wal3/locks`` is made: the root. A claim that is in the way of somebody with a
root, or of a claim below, is removed. That works only while it is empty, and its owner then finds it
gone, and begins again. Who has a root looks for others on the way to each object it writes: one made
before is seen there, and one made after has seen this root.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from wal3_core.errors import StoreDeniedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_FOLDER = ".wal3"
LOCKS = "locks"
_CLAIMS_MAX = 100


def is_root(folder: Path) -> bool:
    """Tell whether a store's root is there."""
    own = folder / OWN_FOLDER
    try:
        return own.is_dir() and (own / LOCKS).is_dir()
    except OSError:
        # What is closed to us may be one, if it is there at all.
        return _is_there(own)


def claim(root: Path) -> None:
    """Make a folder that is there a store's root; StoreDeniedError, with nothing left, when it lies in another."""
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
            # Somebody with a root, or making one below, was here in between.
            continue
        return
    message = f"store {root}: expected to make {own}, found it removed {_CLAIMS_MAX} times"
    raise UnavailableError(message)


def check_above(root: Path) -> None:
    """Raise StoreDeniedError for a folder that lies in another store, and is no root itself."""
    if is_root(root):
        return
    above = next(filter(is_root, root.parents), None)
    if above is not None:
        raise _nested(root, above)


def check_between(root: Path, path: str, *, writes: bool) -> None:
    """Raise StoreDeniedError where one of the folders on the way from ``root`` to ``path`` is a root itself.

    Whoever ``writes`` must have made its own root before.
    """
    for place in _on_the_way(root, path):
        # A link may lead back.
        if not os.path.lexists(f"{place}/{OWN_FOLDER}") or (folder := Path(place)).resolve() == root:
            continue
        if _is_root_for_good(folder) if writes else is_root(folder):
            message = (
                f"store {root}: expected no other store inside, found {folder}: open {folder.as_uri()} for what lies"
                f" below it; or, if that was a mistake, end all processes that use it and remove {folder / OWN_FOLDER}"
            )
            raise StoreDeniedError(message)


def without_links(root: Path, path: str) -> str:
    """Name a folder of a store as it is called without symbolic links; StoreDeniedError when they lead elsewhere."""
    if not any(map(os.path.islink, _on_the_way(root, path))):
        return path
    try:
        folder = (root / path).resolve()
    except (OSError, RuntimeError) as error:
        message = f"store {root}: {path}: {error}"
        raise UnavailableError(message) from error
    if not folder.is_relative_to(root):
        message = f"store {root}: expected its folders inside, found {root / path} to lead to {folder}"
        raise StoreDeniedError(message)
    return "/".join(folder.relative_to(root).parts)


def _on_the_way(root: Path, path: str) -> Iterator[str]:
    # As text: this is done for every object.
    place = str(root)
    for name in path.split("/") if path else ():
        place = f"{place}/{name}"
        yield place


def _is_root_for_good(folder: Path) -> bool:
    """Tell whether a root is there; if one was merely claimed, its owner has to begin again."""
    own = folder / OWN_FOLDER
    return is_root(folder) or (_is_there(own) and not _remove_claim(own))


def _remove_claim(own: Path) -> bool:
    try:
        own.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        # It is a root by now, or not ours to remove.
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
    return StoreDeniedError(
        f"store {root}: expected a folder in no other store, found the store {above}: open {above.as_uri()}, where"
        f" the names of these logs begin with {names}"
    )
