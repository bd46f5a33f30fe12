"""What the page of the Python API shows: constructors that a caller calls, and names in docstrings as links."""

from __future__ import annotations

import re
from pathlib import Path

import griffe

PACKAGE = "wal3_core"
PAGE = Path(__file__).parent / "api.md"
# What a caller of a constructor has; other objects come from the library itself.
GIVEN = {"str", "bytes", "int", "ObjectStore", "str | Sequence[str]"}


class PublicNames(griffe.Extension):
    """Prepares the package before its docstrings and signatures are rendered."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Hide the constructors that only the library calls; link each exported name in a docstring to its place."""
        if pkg.name == PACKAGE:
            shown = re.findall(rf"^::: {PACKAGE}\.(\w+)$", PAGE.read_text(), re.MULTILINE)
            # A word of one hump may be plain English; with backquotes it is a name.
            words = "|".join(name for name in shown if re.search("[a-z][A-Z]", name))
            _prepare(pkg, re.compile(rf"``(?P<code>{'|'.join(shown)})``|(?<![\w.`])(?P<word>{words})(?![\w.`])"))


def _prepare(found: griffe.Object, names: re.Pattern[str]) -> None:
    if found.docstring is not None:
        found.docstring.value = names.sub(_linked, found.docstring.value)
    for name, member in list(found.members.items()):
        if isinstance(member, griffe.Alias):
            continue
        if name == "__init__" and not _is_for_callers(found, member):
            found.del_member(name)
        else:
            _prepare(member, names)


def _linked(match: re.Match[str]) -> str:
    name = match["code"] or match["word"]
    return f"[`{name}`][{PACKAGE}.{name}]"


def _is_for_callers(owner: griffe.Object, constructor: griffe.Object | griffe.Alias) -> bool:
    required = [each for each in list(constructor.parameters)[1:] if each.default is None]
    return "dataclass" in owner.labels or all(str(each.annotation) in GIVEN for each in required)
