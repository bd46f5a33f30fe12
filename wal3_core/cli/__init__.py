"""The command ``wal3``."""

from wal3_core.cli.program import main

__all__ = ["main"]
