"""What to do about each failed check: the first steps of sections of the runbook.

The sentences are those of docs/operations.md, word by word, so that someone who sees only the UI or an alert
reads the same. In commands, LOG and FILE are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal3_orchestration.runbook import Section

AGAIN = "Run `wal3 scrub LOG` once more: damage in transit (a bad cache, a bad NIC) does not repeat."
REPAIR = (
    "Run `wal3 repair LOG --from BACKUP_URL`, where BACKUP_URL is the store of a copy of this log. One run repairs all"
    " damaged and missing files of the log."
)
ROLE = (
    "It needs the policies `writer` on the log's store and `reader` on BACKUP_URL, or `admin`; the policy `maintenance`"
    " cannot write fragments."
)
_CURSOR = (
    (
        "First create another cursor with `wal3 cursor set LOG OTHER N`, where N is the offset that its owner had"
        " reached according to the owner's own data, or `first`."
    ),
    "Run `wal3 cursor delete LOG NAME`.",
    "Set it again: `wal3 cursor set LOG NAME N`.",
    "Run `wal3 cursor delete LOG OTHER`.",
)
_CURSOR_MOVED = ("Move it: `wal3 cursor set LOG NAME N`.",)
_SCRUB = "Then run `wal3 scrub LOG`."
_WITHOUT_COPY = (
    "Without a copy, restore the file `FILE` from an older version of the object, or from a backup of the bucket."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The steps that a section gives for the problems of a check that match a pattern."""

    check: str
    when: str
    section: Section
    steps: tuple[str, ...]


# The first that matches counts.
REMEDIES = (
    Remedy(
        check="sound",
        when=r"MANIFEST\S* ?.*expected a JSON document|expected manifest/MANIFEST\.json beside",
        section=Section.MANIFEST,
        steps=(
            (
                "First run `wal3 scrub LOG` once more: if it can read the manifest, someone has restored the log since,"
                " and what follows would destroy it."
            ),
            "Stop the log's writers and readers, and everything that collects.",
            (
                "Copy the folder `LOG/Life=…/` to a directory outside the store, here `saved/` (`cp -r`, or"
                " `aws s3 cp --recursive`)."
            ),
            (
                "If you have an older manifest, restore it: the object `LOG/manifest/MANIFEST.json` from an older"
                " version, if the bucket keeps versions, or from a byte-for-byte backup of this object."
            ),
            (
                "With a sound copy of the log (`wal3 --store BACKUP_URL scrub LOG`) you can restore that: delete the"
                " object `LOG/manifest/MANIFEST.json` if it exists, because `wal3 destroy` refuses a damaged one."
            ),
            "Then run `wal3 destroy LOG --also-pinned`, which deletes all of LOG's files, so keep `saved/`.",
            "Then run `wal3 --store BACKUP_URL copy LOG LOG --to-store STORE_URL --with-cursors`.",
            (
                "The log's pins and its seal are lost, and each cursor is where it was when the copy was made or last"
                " updated, or does not exist if it was not copied. The records that were appended after that are not"
                " in the copy, but in `saved/`: steps 5 and 6 of the runbook append them again."
            ),
            _SCRUB,
        ),
    ),
    Remedy(
        check="sound",
        when="found a copy of .* (under way|cut short)",
        section=Section.COPY,
        steps=("If a copy is cut short, run the same command again.",),
    ),
    Remedy(
        check="sound",
        when="this is the file of another copy",
        section=Section.UNSOUND,
        steps=(
            (
                "Someone put the file of a copy there. An update of a copy writes the same records as files of its own,"
                " which fit no other log."
            ),
            REPAIR,
            ROLE,
            _SCRUB,
        ),
    ),
    Remedy(
        check="sound",
        when=r"problems?: fragment \d+ .*expected a file, found none",
        section=Section.UNSOUND,
        steps=(
            AGAIN,
            (
                "The object was deleted. Look for a lifecycle rule, a manual delete, or a restored manifest: an older"
                " manifest names objects that have been collected since."
            ),
            REPAIR,
            ROLE,
            _SCRUB,
            _WITHOUT_COPY,
        ),
    ),
    Remedy(
        check="sound",
        when=r"problems?: fragment \d",
        section=Section.UNSOUND,
        steps=(
            AGAIN,
            "The bytes of that file changed.",
            REPAIR,
            ROLE,
            _SCRUB,
            _WITHOUT_COPY,
        ),
    ),
    Remedy(
        check="sound",
        when="problems?: snapshot ",
        section=Section.UNSOUND,
        steps=(
            AGAIN,
            REPAIR,
            ROLE,
            _SCRUB,
            _WITHOUT_COPY,
        ),
    ),
    Remedy(check="sound", when="cursor: expected an offset", section=Section.BAD_CURSOR, steps=_CURSOR_MOVED),
    Remedy(check="sound", when="cursor/", section=Section.BAD_CURSOR, steps=_CURSOR),
    Remedy(check="sound", when="", section=Section.UNSOUND, steps=(AGAIN,)),
    Remedy(
        check="safe_to_collect",
        when="expected a cursor to say what is no longer needed",
        section=Section.REFUSED,
        steps=(
            "Create a cursor (`wal3 cursor set LOG NAME first`), or give the log a policy.",
            "To keep all of it: `wal3 policy LOG --keep-everything`.",
        ),
    ),
    Remedy(
        check="safe_to_collect",
        when="expected to collect at most",
        section=Section.REFUSED,
        steps=(
            "Run `wal3 gc LOG --dry-run`.",
            "If its output is what you want, run `wal3 gc LOG --fraction-max 1`.",
        ),
    ),
    Remedy(
        check="safe_to_collect",
        when="cursor/",
        section=Section.BAD_CURSOR,
        steps=_CURSOR,
    ),
    Remedy(
        check="safe_to_collect",
        when="in what is kept, pruned and dropped",
        section=Section.REFUSED,
        steps=("Run `wal3 scrub LOG`, and collect nothing until it finds no damage.",),
    ),
    Remedy(
        check="little_garbage",
        when="",
        section=Section.GARBAGE,
        steps=(
            "If a reader caught up, or collection was off before: nothing.",
            (
                "Otherwise look at `reason` in the metadata of `garbage_plan`: it names the cursor up to which the log"
                " is collected."
            ),
            "If someone moved that cursor too far, move it back before the log is pruned.",
        ),
    ),
    Remedy(
        check="collected_in_time",
        when="found it announced",
        section=Section.GARBAGE,
        steps=("Run `wal3 gc LOG`: it completes the collection or withdraws the announcement.",),
    ),
    Remedy(
        check="collected_in_time",
        when="expected garbage to be deleted",
        section=Section.GARBAGE,
        steps=(
            "Run `wal3 pin list LOG`.",
            "If a pin keeps the garbage, delete the pin when it is no longer needed.",
            "If not, find out why runs of `deletion_job` fail.",
        ),
    ),
    Remedy(
        check="collected_in_time",
        when="",
        section=Section.GARBAGE,
        steps=("Turn on `daily_collection`, or find out why runs of `collection_job` fail.",),
    ),
    Remedy(
        check="cursors_move",
        when="",
        section=Section.CURSOR,
        steps=(
            "Find its owner. `wal3 cursor list LOG` shows all cursors.",
            (
                "Fix the owner, or, if the records that the cursor keeps are not needed, delete it:"
                " `wal3 cursor delete LOG NAME`."
            ),
        ),
    ),
    Remedy(
        check="dirty_logs_readable",
        when="found [0-9]+ that were not",
        section=Section.DIRTY,
        steps=(
            "Find out who moved, deleted or restored the cursor `rollup`: `wal3 cursor list LOG`.",
            "The logs that only these markers named are found by `daily_collection`, or when they are appended to.",
        ),
    ),
    Remedy(
        check="dirty_logs_readable",
        when="",
        section=Section.DIRTY,
        steps=("Run `wal3 scrub LOG`: a dirty log is checked and repaired like any other.",),
    ),
    Remedy(
        check="few_markers_wait",
        when="",
        section=Section.DIRTY,
        steps=("Turn on the sensor `dirty_logs`, or find out why its ticks or runs of `rollup_job` fail.",),
    ),
    Remedy(
        check="rolled_up_in_time",
        when="",
        section=Section.DIRTY,
        steps=(
            "Turn on the sensor `dirty_logs`, or find out why its ticks or runs of `rollup_job` fail.",
            "`wal3 dirty show SERVER` says why each marked log waits.",
        ),
    ),
    Remedy(
        check="marked_logs_found",
        when="",
        section=Section.DIRTY,
        steps=(
            "A log that was destroyed needs nothing: its markers are dropped.",
            "For a log that cannot be read, run `wal3 scrub` on it.",
        ),
    ),
    Remedy(
        check="consumers_keep_up",
        when="",
        section=Section.PRESSURE,
        steps=(
            "Wake the consumer that the text names; `wal3 cursor list LOG` shows all of them.",
            "Appends are accepted again as soon as it is within the limit.",
        ),
    ),
    Remedy(check="can_be_compacted", when="cursor/", section=Section.BAD_CURSOR, steps=_CURSOR),
    Remedy(
        check="can_be_compacted",
        when="",
        section=Section.COMPACTION,
        steps=("Run `wal3 scrub LOG`, and repair what it finds.", "The next run compacts the log."),
    ),
    Remedy(
        check="compacted_in_time",
        when="held back",
        section=Section.COMPACTION,
        steps=(
            "Run `wal3 cursor list LOG`, and find the owner of the cursor that the text names.",
            (
                "Fix the owner, or, if the records that the cursor keeps are not needed, delete it:"
                " `wal3 cursor delete LOG NAME`."
            ),
        ),
    ),
    Remedy(
        check="compacted_in_time",
        when="",
        section=Section.COMPACTION,
        steps=(
            "Turn on the sensor `key_compaction`, or find out why runs of `compaction_job` fail.",
            "To compact the log now, run `wal3 compact LOG`.",
        ),
    ),
    Remedy(
        check="compaction_proof",
        when="CorruptError|MissingError",
        section=Section.COMPACTION,
        steps=("Run `wal3 scrub LOG`, and repair what it finds.", "The next run compacts the log."),
    ),
    Remedy(
        check="compaction_proof",
        when="",
        section=Section.COMPACTION,
        steps=(
            "Nothing was installed: the log is as it was.",
            "Run `wal3 compact LOG --dry-run`: it merges without writing, and fails in the same way.",
            "Stop compacting the log: `wal3 policy LOG --cleanup collect`, and report the text, with wal3's version.",
        ),
    ),
    Remedy(
        check="compaction_verified",
        when="",
        section=Section.COMPACTION,
        steps=(
            "Run `wal3 compact LOG --verify` once more: damage in transit (a bad cache, a bad NIC) does not repeat.",
            (
                "If it fails again, stop every `wal3 gc` and `wal3 compact` of this log: what the pass replaced exists"
                " until it is deleted, an interval after the pass."
            ),
            (
                "The pass's record, `compaction/PASS.TOKEN.json` in the folder of the log's life, names these files as"
                " `members`: copy them to another place."
            ),
            (
                "Any Parquet reader reads them. Append again what is missing. Then run `wal3 compact LOG --force`, and"
                " launch `compaction_job` for the log: the check passes once that pass holds."
            ),
        ),
    ),
    Remedy(
        check="oldest_due_within",
        when="",
        section=Section.QUEUE_OLD,
        steps=(
            "Run `wal3 queue stats LOG` twice, a minute apart.",
            "If nothing changes, no broker has the queue, or no consumer asks it: start them.",
            "If `due` falls, the consumers catch up: nothing needs to be done.",
            "If `due` rises, the consumers are too slow: start more of them, or let each take more items at a time.",
        ),
    ),
    Remedy(
        check="depth_below",
        when="",
        section=Section.QUEUE_OLD,
        steps=(
            "Run `wal3 queue stats LOG`: of the items that wait, the deadlines of `scheduled` ones are still to come.",
            "If most are due, the consumers are too slow: start more of them, or let each take more items at a time.",
            "If most are scheduled, and that is meant, set `queue_pending_max` of the resource `collection` higher.",
        ),
    ),
    Remedy(
        check="dead_letters_below",
        when="",
        section=Section.DEAD_LETTERS,
        steps=(
            "Look at them with `dead` of the queue's broker, and find out in the consumers' logs why they fail.",
            "Fix that first: items that are kicked before it come back.",
            "Then `kick` makes them pending again, due at once.",
            "Items that are not worth another try are removed by `purge` with `dead` alone.",
        ),
    ),
    Remedy(
        check="few_orphans",
        when="",
        section=Section.GARBAGE,
        steps=("`wal3 inspect LOG` shows whether writers compete for the log.",),
    ),
)
