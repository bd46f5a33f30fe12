"""One workflow per file: its assets, checks, sensor, schedule, job."""
