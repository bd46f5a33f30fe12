"""Garbage collection: assets and checks, sensors, schedules, jobs."""
