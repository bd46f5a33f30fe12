"""Reading one log: scans, following, pins, and reading everything back to verify it."""
