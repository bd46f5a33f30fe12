"""Vacancies: the document in the manifest's place while a name has no log (destroyed, being copied to, or kept).

A name has one manifest object, whose versions form one chain from life to life: it is replaced by CAS and
never deleted, so that a late request of an earlier life cannot touch a later one.
Source: docs/protocol/copies.md, "Lives".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wal3_core.format import strict_json
from wal3_core.format.manifest import BYTES_MAX, Manifest
from wal3_core.format.paths import LOG_ID, LogId
from wal3_core.format.strict_json import INTEGER, TEXT, StoredDocument, member, one_of


class VacancyKind(StrEnum):
    """Why there is no log."""

    DESTROYED = "destroyed"
    COPYING = "copying"
    FOLLOWING = "following"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy(StoredDocument):
    """No log: ``log_id`` is the life that ended, or that a copy is about to begin; for a kept name, no life's.

    ``source`` names the log that is copied, ``pin`` its pin that keeps it meanwhile, and ``terms`` all else that must
    be equal for another call to resume the copy. A kept name is reserved for the successor of the log ``source``,
    whose id is the ``terms``.
    """

    kind: VacancyKind
    log_id: LogId
    generation: int = 1
    writer: str = ""
    source: str = ""
    terms: str = ""
    pin: str = ""

    BYTES_MAX = BYTES_MAX
    MEMBERS = (
        member("vacant", one_of(VacancyKind), "kind"),
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("writer", TEXT),
        member("source", TEXT),
        member("terms", TEXT),
        member("pin", TEXT),
    )

    def is_kept_for(self, log_id: LogId) -> bool:
        """Return whether the name is kept for the successor of the log with this id."""
        return self.kind is VacancyKind.FOLLOWING and self.terms == log_id


def manifest_or_vacancy(data: bytes, what: str) -> Manifest | Vacancy:
    """Decode and check a name's manifest object; CorruptError names ``what`` when anything is off."""
    fields = strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX)
    return Vacancy.from_fields(fields) if fields.has("vacant") else Manifest.from_fields(fields)
