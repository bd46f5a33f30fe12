"""Key compaction: assets and checks, the sensor and the schedule that choose logs, jobs."""
