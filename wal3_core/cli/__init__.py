"""The command ``wal3``."""

import sys


def main() -> None:
    """Run the command on this process's arguments; it needs the packages of the extra ``cli``."""
    try:
        from wal3_core.cli.program import main as run  # noqa: PLC0415 - it needs click
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit(f"wal3: expected the package {error.name}, found that it is not installed: pip install 'wal3[cli]'")
    run()
