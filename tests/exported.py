"""Exported names by their role."""

from __future__ import annotations

# Exported since signatures name them: callers get them from one call and hand them to another. Those of their methods
# that callers use are documented where the object is returned; the others belong to the library.
IN_SIGNATURES = frozenset(
    {
        "Cursor",
        "Decision",
        "DeletionPart",
        "DeletionReport",
        "DestroyPart",
        "DueDocument",
        "Following",
        "Fragment",
        "FragmentPointer",
        "Garbage",
        "Manifest",
        "Marked",
        "MarkedLog",
        "Marker",
        "Marks",
        "ObjectMeta",
        "ObjectStore",
        "Overtaken",
        "Plan",
        "Problem",
        "References",
        "RollUpEnd",
        "RollUpPlan",
        "RollUpTime",
        "Runtime",
        "Shape",
        "Snapshot",
        "SnapshotCompactionReport",
        "SnapshotPlan",
        "SnapshotPointer",
        "Stretch",
        "ThreadRuntime",
        "Waiting",
        "Walk",
    }
)
