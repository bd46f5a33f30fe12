"""Questions before something is deleted."""

from __future__ import annotations

import sys

import click

from wal3_core.cli.failures import Failure, InvalidFailure


def require_terminal(what: str, wanted: str) -> None:
    """Raise InvalidFailure when stdin is not a terminal; its message names --yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        message = f"{what}: expected --yes, or a terminal to ask {wanted}, found neither"
        raise InvalidFailure(message)


def confirm(what: str, question: str) -> None:
    """Ask whether to delete something; Failure unless the answer is yes."""
    require_terminal(what, "for a yes")
    try:
        wanted = click.confirm(question)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        # Ctrl-D.
        wanted = False
    if not wanted:
        message = f"{what}: not deleted"
        raise Failure(message)
