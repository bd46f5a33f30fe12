"""The command's top: which store, and how errors come out."""

from __future__ import annotations

from importlib.metadata import version

import click

from wal3_core.cli.appending import append, init
from wal3_core.cli.collecting import gc
from wal3_core.cli.copying import copy
from wal3_core.cli.cursors import cursor
from wal3_core.cli.destroying import destroy
from wal3_core.cli.failures import EXIT_INTERRUPTED, Failure, failure
from wal3_core.cli.git import ingest_git
from wal3_core.cli.identity import store_id
from wal3_core.cli.inspecting import inspect
from wal3_core.cli.listing import ls
from wal3_core.cli.output import drop_output
from wal3_core.cli.pinning import pin
from wal3_core.cli.policies import policy
from wal3_core.cli.reading import cat, tail
from wal3_core.cli.sealing import migrate, seal
from wal3_core.cli.session import Session
from wal3_core.cli.snapshots import snapshot
from wal3_core.cli.verifying import doctor, scrub
from wal3_core.errors import LogError


class Program(click.Group):
    """A group whose commands' library errors come out as one line on stderr."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; no traceback for what a user can run into."""
        try:
            return super().invoke(ctx)
        except LogError as error:
            raise failure(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            # Standard output is full, say; the interpreter would try once more on its way out.
            drop_output()
            raise Failure(str(error)) from error
        # Where SIGINT was ignored from the start, as a shell does for what it starts in the background, Python
        # leaves it so, and so do we: Ctrl-C is for the program in the foreground, and this one ends by SIGTERM.
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(EXIT_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order one meets them, not the alphabet's."""
        del ctx
        return list(self.commands)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", metavar="URL", envvar="WAL3_STORE", help="Where the logs are; also WAL3_STORE.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="How long a store that does not answer is asked again; 120 unless the store's URL says.",
)
@click.version_option(version("wal3"), prog_name="wal3")
@click.pass_context
def cli(context: click.Context, store: str | None, timeout_s: float | None) -> None:
    """Write-ahead logs on object storage.

    A store holds logs, a log holds records, and a record has an offset, a time, a body, and perhaps a
    key. The store is a directory, a bucket, or a folder in one:

    \b
      file:///var/lib/wal3      a local directory; a path that starts with / or . will do
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

    Exit codes: 0 done, 1 failed or unsound, 2 a request that can not be served as it stands, 130
    interrupted, 143 ended by SIGTERM.
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
):
    cli.add_command(_command)


def main() -> None:
    """Run the command on this process's arguments."""
    cli()
