"""The command ``wal3``."""

from wal3_core.cli.interrupts import guarded

__all__ = ["main"]


def main() -> None:
    """Run the command on this process's arguments; Ctrl-C ends it in one line, while it is loaded, too."""
    with guarded():
        from wal3_core.cli.program import cli  # noqa: PLC0415 - within the guard: it takes most of the start

        cli()
