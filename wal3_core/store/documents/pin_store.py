"""Pins on storage: a named copy of a whole manifest, whose objects are kept.

A pin is written first; then the manifest is read again. If the log no longer holds every pinned object,
the pin came too late, and is written again for the current manifest (INV-14).
Source: docs/protocol/collection.md, "Pins".
"""

from __future__ import annotations

from dataclasses import replace

from wal3_core.arguments import checked, text
from wal3_core.errors import CorruptError, InvalidRequestError, UnavailableError
from wal3_core.format.manifest import BEING_DESTROYED, UNDO, Manifest
from wal3_core.format.paths import PIN_FOLDER, check_pin_name, pin_name, pin_path
from wal3_core.format.pin import Pin
from wal3_core.options import PINS_AHEAD, REBASES_MAX
from wal3_core.runtime import wall_us
from wal3_core.store.documents.document_store import LoadedDocument
from wal3_core.store.documents.manifest_store import LifeStore
from wal3_core.store.documents.named_store import NamedStore
from wal3_core.store.object_store import object_url


class PinStore(LifeStore):
    """The pins of one life of a log: that of ``log_id``, or else the first one found."""

    def _open(self) -> None:
        self._pins = NamedStore(self._manifests, self._runtime, self._retry, Pin.from_fields, bytes_max=Pin.BYTES_MAX)

    @checked(name=check_pin_name, reason=text)
    def create(self, name: str, *, reason: str) -> Pin:
        """Pin what the log holds now; InvalidRequestError when there is a pin of that name.

        An unfinished pin is created again. If this one cannot be finished it stays unfinished: it keeps the
        objects that still exist, and can be created again or deleted.
        """
        path = pin_path(name)
        base = self._load()
        seen = self._pins.look(path)
        if seen is not None and isinstance(seen.document, Pin) and seen.document.complete:
            raise self._taken(path)
        self._refuse_destroyed(path, base)
        generation, etag = (0, None) if seen is None else (seen.document.generation, seen.etag)
        for _ in range(REBASES_MAX):
            generation += 1
            saved = self._pins.save(path, self._pin(base, reason, generation), etag)
            if saved is None:
                raise self._taken(path)
            now = self._load()
            self._refuse_destroyed(path, now)
            if _still_whole(base, now):
                return self._complete(path, saved)
            base, etag = now, saved.etag
        raise UnavailableError(
            f"pin {object_url(self._store, path)}: the log was reorganised {REBASES_MAX} times over; not finished:"
            f" pin it again, or delete it"
        )

    def _complete(self, path: str, saved: LoadedDocument[Pin]) -> Pin:
        """Mark the pin as complete: from here on a missing object of it is reported as damage."""
        completed = replace(saved.document, complete=True, generation=saved.document.generation + 1)
        finished = self._pins.save(path, completed, saved.etag)
        if finished is None:
            self._load()
            raise self._taken(path)
        return finished.document

    def _refuse_destroyed(self, path: str, manifest: Manifest) -> None:
        if manifest.destroying:
            found = f"expected a log that stays, found it {BEING_DESTROYED}: {UNDO}"
            raise InvalidRequestError(f"pin {object_url(self._store, path)}: {found}")

    def _taken(self, path: str) -> InvalidRequestError:
        return InvalidRequestError(f"pin {object_url(self._store, path)}: expected no pin of that name, found one")

    @checked(name=check_pin_name)
    def load(self, name: str) -> Pin | None:
        """Load a pin; None when there is none of that name."""
        seen = self._pins.load(pin_path(name))
        if seen is None:
            # Perhaps because the log is gone: that is an error.
            self._load()
        return None if seen is None else seen.document

    def list(self) -> dict[str, Pin]:
        """Load all pins by name; CorruptError for a file that is no pin."""
        found = {}
        for path, seen in self._pins.list(PIN_FOLDER, pin_name, ahead=PINS_AHEAD):
            if isinstance(seen, CorruptError):
                raise seen
            found[pin_name(path)] = seen.document
        if not found:
            self._load()
        return found

    @checked(name=check_pin_name)
    def delete(self, name: str) -> None:
        """Delete a pin: objects that only it kept can be collected. Its name can be used again at once.

        A tombstone of some 250 bytes stays as long as the log. UnavailableError when it is undetermined whether the
        pin was deleted.
        """
        path = pin_path(name)
        self._load()
        self._pins.delete(path)

    @checked(name=check_pin_name)
    def forget(self, name: str) -> None:
        """Delete a pin with its object; only for a name that is never used again.

        If the name were used again, a request without an answer could delete the new pin minutes later. A ``create``
        without an answer may bring the pin back, unfinished.
        """
        path = pin_path(name)
        self._load()
        self._pins.forget(path)

    def _load(self) -> Manifest:
        return self._manifests.load().manifest

    def _pin(self, base: Manifest, reason: str, generation: int) -> Pin:
        return Pin(manifest=base, reason=reason, epoch_us=wall_us(self._runtime), generation=generation)


def _still_whole(pinned: Manifest, now: Manifest) -> bool:
    """Return whether the log still holds every object of the pinned manifest.

    A collection that is announced but has not pruned yet does no harm: it deletes nothing before it
    has pruned, and a deleter reads the pins after that, and finds this one.
    """
    count = len(pinned.pointers)
    return now.first.seq_no <= pinned.first.seq_no and now.pointers[:count] == pinned.pointers
