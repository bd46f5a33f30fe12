"""Exported names by their role."""

from __future__ import annotations

# Exported since signatures name them: callers get them from one call and hand them to another. Those of their methods
# that callers use are documented where the object is returned; the others belong to the library.
IN_SIGNATURES = frozenset(
    {
        "Cursor",
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
        "Marker",
        "Marks",
        "ObjectMeta",
        "ObjectStore",
        "Overtaken",
        "Plan",
        "Problem",
        "References",
        "Runtime",
        "Shape",
        "Snapshot",
        "SnapshotCompactionReport",
        "SnapshotPlan",
        "SnapshotPointer",
        "ThreadRuntime",
        "Waiting",
        "Walk",
    }
)
