"""Operations on a whole log: copy, seal, destroy, and compaction of its snapshots."""
