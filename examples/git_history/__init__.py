"""A git repository's history in a log: see README.md."""
