"""The collection of garbage: assets and checks, sensors, schedules, jobs."""
