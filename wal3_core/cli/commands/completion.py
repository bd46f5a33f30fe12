"""``wal3 completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from wal3_core.cli.shell.output import show
from wal3_core.cli.shell.session import json_option

_VARIABLE = "_WAL3_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the script by which SHELL completes commands, options and names.

    The names of logs, cursors and pins come from the store in WAL3_STORE, or of --store on the line being
    typed; a store that does not answer within a second completes nothing.

    \b
    Examples:
      wal3 completion bash > ~/.local/share/bash-completion/completions/wal3
      wal3 completion zsh > "${fpath[1]}/_wal3"
      wal3 completion fish > ~/.config/fish/completions/wal3.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(context.find_root().command, {}, "wal3", _VARIABLE).source()
    show(script, {"shell": shell, "script": script}, as_json=as_json)
