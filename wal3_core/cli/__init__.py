"""The command ``wal3``."""

import os
import sys

from wal3_core.cli.shell.process import escape_what_cannot_be_encoded, guarded, replace_closed

__all__ = ["main"]

_EXIT_INVALID = 2
# Set by the script of `wal3 completion`.
_COMPLETES = "_WAL3_COMPLETE"


def main() -> None:
    """Run the command on this process's arguments; it needs the packages of the extra ``cli``.

    Ctrl-C ends it in one line, while it is loaded, too.
    """
    with guarded():
        if replace_closed():
            message = "wal3: expected standard output, found it closed: redirect it, perhaps to /dev/null"
            sys.stderr.write(f"{message}\n")
            sys.exit(_EXIT_INVALID)
        escape_what_cannot_be_encoded()
        try:
            from wal3_core.cli.program import cli  # noqa: PLC0415 - within the guard: it takes most of the start
        except ModuleNotFoundError as error:
            if error.name not in {"click", "rich"}:
                raise
            from wal3_core.runtime.extras import missing  # noqa: PLC0415 - for a quick start

            sys.exit(f"wal3: {missing(error.name, 'cli')}")
        try:
            cli()
        finally:
            if _COMPLETES in os.environ:
                # The end of the interpreter would wait for a request that was given up.
                sys.stdout.flush()
                os._exit(0)
