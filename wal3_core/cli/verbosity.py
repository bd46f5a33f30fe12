"""Log lines on stderr: all of them with ``-v`` and ``-vv``; without, only that a store does not answer."""

from __future__ import annotations

import logging

import click

_WAITING = "wal3.store.waiting"
_LINES = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Stderr(logging.Handler):
    """Writes lines to the stderr of the moment: a progress bar replaces it for a while, and so do tests."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            click.echo(" ".join(self.format(record).splitlines()), err=True)
        except Exception:  # noqa: BLE001 - logging's own way with a handler that fails
            self.handleError(record)


def show_log_lines(context: click.Context, verbosity: int) -> None:
    """Show the library's log lines until the command ends: INFO for 1, DEBUG for 2, what it waits for with 0."""
    logger, handler = logging.getLogger("wal3" if verbosity else _WAITING), _Stderr()
    if verbosity:
        handler.setFormatter(logging.Formatter(_LINES))
    before = logger.level
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
    logger.addHandler(handler)

    def end() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    context.call_on_close(end)
