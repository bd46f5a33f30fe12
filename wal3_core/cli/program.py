"""The top-level command: which store, and how errors are reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

import click

from wal3_core.cli.shell.failures import EXIT_INTERRUPTED, NAMED_LOG, Failure, failure, readable
from wal3_core.cli.shell.process import as_exception
from wal3_core.cli.shell.session import Session, of_target
from wal3_core.cli.types import Duration
from wal3_core.errors import LogError

# The commands in the order of first use, each with the first sentences of its help.
_COMMANDS = {
    "init": "Create the empty log LOG.",
    "append": "Append the records on standard input to LOG.",
    "cat": "Print the records of LOG, one JSON object per line.",
    "tail": "Print the last records of LOG, as `wal3 cat` does; with --follow, wait for more.",
    "files": "List the stored files that hold LOG's records now, for programs that read them in place.",
    "ls": "List the logs of the store, or PREFIX and the logs below it.",
    "inspect": "Show what LOG consists of: its manifest, snapshots, fragments, writers' epochs and cursors.",
    "cursor": "Show and move a log's cursors.",
    "pin": "Create, show and delete a log's pins.",
    "policy": "Show or change the policy by which LOG is collected or compacted, and its limit of unprocessed records.",
    "compact": "Compact LOG by key: keep the newest record of every key; appends and reads continue meanwhile.",
    "snapshot": "Show the shape of a log's tree of snapshots, and repack it.",
    "scrub": "Read whole logs back and check every object: manifest, snapshots, fragments, cursors.",
    "repair": "Write LOG's damaged and missing files again, from a copy of LOG.",
    "queue": "Work with delay queues: in the store, or behind a server.",
    "fleet": "Show the logs that the servers have marked, and how far behind their consumers are.",
    "dirty": "Show which logs have grown, and roll the dirty logs up.",
    "gc": "Collect garbage: prune records below every cursor, delete what was pruned an interval ago.",
    "seal": "Close LOG for good: it can still be read, but not appended to.",
    "migrate": "Seal LOG and begin the log SUCCESSOR where it ends.",
    "copy": "Copy LOG as it is now to the new log TARGET; offsets and times stay the same.",
    "destroy": "Delete LOG and everything that belongs to it, for good.",
    "doctor": "Test whether a store can hold logs, and how fast it is.",
    "exercise": "Test a store under load: write many logs, kill the writers, and check every record.",
    "store-id": "Print which store this is.",
    "completion": "Print the script by which SHELL completes commands, options and names.",
}
# Commands that are in the module of another.
_MODULES = {
    "init": "append",
    "dirty": "fleet",
    "cat": "read",
    "pin": "cursor",
    "tail": "read",
    "files": "read",
    "repair": "copy",
    "migrate": "seal",
    "store_id": "doctor",
}
_WAITING = "wal3.store.waiting"
_LINES = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Program(click.Group):
    """A group that reports library errors as one line on stderr, and imports a command when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Read what stands before the command."""
        with _readable_usage():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; expected errors print no traceback."""
        try:
            with as_exception(), _readable_usage():
                return super().invoke(ctx)
        except LogError as error:
            log = ctx.meta.get(NAMED_LOG)
            opened = ctx.obj.store if isinstance(ctx.obj, Session) and ctx.obj.url else None
            raise failure(of_target(error, opened, log), log or "LOG") from error
        except BrokenPipeError:
            raise
        except OSError as error:
            # For example, stdout's disk is full; the interpreter would flush once more at exit.
            from wal3_core.cli.shell.output import drop_output  # noqa: PLC0415 - rich takes long to import

            drop_output()
            raise Failure(str(error)) from error
        except click.Abort as error:
            # At a question: Ctrl-D, or Ctrl-C.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            interrupted(ctx)
        except KeyboardInterrupt:
            interrupted(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of first use, not alphabetically."""
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else command(name), rest


@contextmanager
def _readable_usage() -> Iterator[None]:
    """Make click's messages readable, whatever was given on the line."""
    try:
        yield
    except click.UsageError as error:
        error.message = readable(error.message)  # type: ignore[misc]  # declared Final
        raise


def interrupted(context: click.Context) -> NoReturn:
    """End the command as Ctrl-C does."""
    click.echo("Interrupted.", err=True)
    context.exit(EXIT_INTERRUPTED)


def command(name: str) -> click.Command:
    """Import a command: its module is named for it, or for another of its kind, and defines it under its name."""
    name = name.replace("-", "_")
    found = getattr(import_module(f"wal3_core.cli.commands.{_MODULES.get(name, name)}"), name)
    assert isinstance(found, click.Command)
    return found


@click.group(
    cls=Program,
    # For the list of commands and for completion, which show no more of a command.
    commands={name: click.Command(name, short_help=text) for name, text in _COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--store", metavar="URL", envvar="WAL3_STORE", help="The store that holds the logs; WAL3_STORE by default."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(0, 86_400),
    metavar="DURATION",
    help="How long to retry while the store does not answer: 90, 5m; 120 s unless the store's URL sets it.",
)
@click.option("-v", "--verbose", "verbosity", count=True, help="Show log lines on stderr; -vv shows every retry.")
@click.version_option(package_name="wal3", prog_name="wal3")
@click.pass_context
def cli(context: click.Context, store: str | None, timeout_s: float | None, verbosity: int) -> None:
    """Write-ahead logs on object storage.

    A store holds logs, a log holds records, and a record has an offset, a time, a body and an optional
    key. The store is a directory, a bucket, or a folder in one:

    \b
      file:///var/lib/wal3    a local directory; or a path that starts with / or .
      s3://bucket/prefix      credentials, region and endpoint as for AWS tools,
                              or ?endpoint=…&region=…&profile=…&timeout_s=…
                              &writes_per_s=…&reads_per_s=… (0: no limit)
      gs://bucket/prefix      Google Cloud Storage
      az://container/prefix   Azure Blob Storage

    \b
    Try it:
      export WAL3_STORE=/tmp/logs
      echo '{"key": "greeting", "body": "hello"}' | wal3 append --create first
      wal3 cat first
      wal3 ls

    \b
    Exit codes:
      0    done
      1    failed, or found something unsound
      2    the request is invalid
      3    exercise: records are wrong
      130  interrupted by Ctrl-C
      143  ended by SIGTERM
    """
    show_log_lines(context, verbosity)
    context.obj = Session(store, timeout_s)


class _Stderr(logging.Handler):
    """Writes lines to the stderr of the moment: a progress bar replaces it for a while, and so do tests."""

    def emit(self, record: logging.LogRecord) -> None:
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
