"""The list of commands, which imports none of them."""

from __future__ import annotations

import click

from wal3_core.cli.program import cli, command


def test_each_command_is_listed_with_its_own_help() -> None:
    listed = {name: stub.get_short_help_str(1000) for name, stub in cli.commands.items()}

    assert listed == {name: command(name).get_short_help_str(1000) for name in listed}
    assert {name: command(name).name for name in listed} == {name: name for name in listed}


def test_call_of_an_unknown_command_is_refused_as_ever() -> None:
    context = click.Context(cli, info_name="wal3")

    assert cli.get_command(context, "no-such") is None
    assert cli.list_commands(context)[:3] == ["init", "append", "cat"]
