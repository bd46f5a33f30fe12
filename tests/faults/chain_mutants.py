"""Defects of what goes along with a log that is migrated, copied or updated, which worlds of such logs must find."""

from __future__ import annotations

from tests.mutations import Mutation

CHAIN_MUTANTS = (
    Mutation(
        "a copy takes a cursor beyond its end",
        "wal3_core.model.cursor:Cursor.within",
        "position=self.position if stays else limit",
        "position=self.position",
    ),
    Mutation(
        "an update forgets a writer's list",
        "wal3_core.log.maintain.copy.cursors:CopiedCursors._move",
        "self._ours.carry(name, wanted, held)",
        "self._ours.carry(name, replace(wanted, appends=()), held)",
    ),
    Mutation(
        "a retired cursor stays in the copy",
        "wal3_core.log.maintain.copy.cursors:delete_retired",
        "ours.delete_version(name, held)",
        "pass",
    ),
    Mutation(
        "a successor has no cursors",
        "wal3_core.log.maintain.sealer:_Beginning._fill",
        "take_cursors(Operation.MIGRATE, found, first.position, first.position), policy",
        "{}, policy",
    ),
    Mutation(
        "a successor has no policy",
        "wal3_core.log.maintain.sealer:_Beginning._fill",
        "first.position, first.position), policy)",
        "first.position, first.position), None)",
    ),
    Mutation(
        "an update takes the cursors of a successor",
        "wal3_core.log.maintain.copy.update:_Updating.run",
        "if with_cursors and base.manifest.follows != source.manifest.follows:",
        "if False:",
    ),
    Mutation(
        "a copy has no policy",
        "wal3_core.log.maintain.copy.copier:_Copying._policy",
        "return policy if policy.generation else None",
        "return None",
    ),
    Mutation(
        "a consumer goes on in a successor at its first record that is left",
        "wal3_core.log.read.consumed:Opening.place",
        "start = sealed.next.position",
        'start = "beginning"',
    ),
    Mutation(
        "a clock that is ahead lets records go before their time",
        "wal3_core.log.collect.planner:first_younger",
        "return offset if own_us <= store_us else _first_after(manifest, store_us - age_us, load)",
        "return offset",
    ),
)
