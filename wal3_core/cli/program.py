"""The top-level command: which store, and how errors are reported."""

from __future__ import annotations

from importlib.metadata import version
from typing import NoReturn

import click

from wal3_core.cli.commands.append import append
from wal3_core.cli.commands.cat import cat
from wal3_core.cli.commands.completion import completion
from wal3_core.cli.commands.copy import copy
from wal3_core.cli.commands.cursor import cursor
from wal3_core.cli.commands.destroy import destroy
from wal3_core.cli.commands.doctor import doctor
from wal3_core.cli.commands.gc import gc
from wal3_core.cli.commands.ingest_git import ingest_git
from wal3_core.cli.commands.init import init
from wal3_core.cli.commands.inspect import inspect
from wal3_core.cli.commands.ls import ls
from wal3_core.cli.commands.migrate import migrate
from wal3_core.cli.commands.pin import pin
from wal3_core.cli.commands.policy import policy
from wal3_core.cli.commands.scrub import scrub
from wal3_core.cli.commands.seal import seal
from wal3_core.cli.commands.snapshot import snapshot
from wal3_core.cli.commands.store_id import store_id
from wal3_core.cli.commands.tail import tail
from wal3_core.cli.failures import EXIT_INTERRUPTED, Failure, failure
from wal3_core.cli.interrupts import as_exception
from wal3_core.cli.output import drop_output
from wal3_core.cli.session import Session
from wal3_core.cli.targets import of_target
from wal3_core.cli.times import Duration
from wal3_core.errors import LogError


class Program(click.Group):
    """A group that reports library errors as one line on stderr."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; expected errors print no traceback."""
        try:
            with as_exception():
                return super().invoke(ctx)
        except LogError as error:
            raise failure(of_target(error, ctx.obj)) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            # For example, stdout's disk is full; the interpreter would flush once more at exit.
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


def interrupted(context: click.Context) -> NoReturn:
    """End the command as Ctrl-C does."""
    click.echo("Interrupted.", err=True)
    context.exit(EXIT_INTERRUPTED)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.version_option(version("wal3"), prog_name="wal3")
@click.pass_context
def cli(context: click.Context, store: str | None, timeout_s: float | None) -> None:
    """Write-ahead logs on object storage.

    A store holds logs, a log holds records, and a record has an offset, a time, a body and an optional
    key. The store is a directory, a bucket, or a folder in one:

    \b
      file:///var/lib/wal3      a local directory; or a path that starts with / or .
      s3://bucket/prefix        credentials, region and endpoint as for any AWS tool,
                                or ?endpoint=…&region=…&profile=…&timeout_s=…
      gs://bucket/prefix        Google Cloud Storage
      az://container/prefix     Azure Blob Storage

    \b
    Try it:
      export WAL3_STORE=/tmp/logs
      echo '{"key": "greeting", "body": "hello"}' | wal3 append --create first
      wal3 cat first
      wal3 ls

    Exit codes: 0 done, 1 failed or unsound, 2 invalid request, 130 interrupted, 143 ended by SIGTERM.
    """  # noqa: D301 - \b keeps click from wrapping what follows
    context.obj = Session(store, timeout_s)


for _command in (
    init,
    append,
    cat,
    tail,
    ls,
    inspect,
    cursor,
    pin,
    policy,
    snapshot,
    scrub,
    gc,
    seal,
    migrate,
    copy,
    destroy,
    ingest_git,
    doctor,
    store_id,
    completion,
):
    cli.add_command(_command)
