"""Defects of what goes along with a log that is migrated, copied or updated, which worlds of such logs must find."""

from __future__ import annotations

from tests.mutations import Mutation

CHAIN_MUTANTS = (
    Mutation("a copy takes a cursor beyond its end", "Cursor.within", "_1 if stays else limit", "_1"),
    Mutation(
        "an update forgets a writer's list",
        "CopiedCursors._move",
        "_1.carry(name, wanted, held)",
        "_1.carry(name, replace(wanted, appends=()), held)",
    ),
    Mutation("a retired cursor stays in the copy", "delete_retired", "_.delete_version(...)"),
    Mutation("a successor has no cursors", "_Beginning._fill", "take_cursors(...)", "{}"),
    Mutation(
        "a successor has no policy",
        "_Beginning._fill",
        "_1.write_documents(_2, policy)",
        "_1.write_documents(_2, None)",
    ),
    Mutation("an update takes the cursors of a successor", "_Updating.run", "with_cursors and _", "False"),
    Mutation("a copy has no policy", "_Copying._policy", "policy if policy.generation else None", "None"),
    Mutation(
        "a consumer goes on in a successor at its first record that is left",
        "Opening.place",
        "start = sealed.next.position",
        'start = "beginning"',
    ),
    Mutation(
        "a clock that is ahead lets records go before their time", "first_younger", "offset if _ else _", "offset"
    ),
)
