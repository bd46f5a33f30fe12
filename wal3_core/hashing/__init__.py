"""SHA3-256 of records: by ``hashlib``, or, where the extra ``fast`` is installed, of several records side by side.

Both give the same digests. ``lanes.py`` decides which one runs; see docs/architecture.md, "Record digests".
"""
