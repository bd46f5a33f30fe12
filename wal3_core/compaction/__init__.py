"""Key compaction of one log, without Spark: what a pass drops, how it replaces fragments, and the proof of both."""
