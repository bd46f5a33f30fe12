"""The policies in deploy/iam, and what they say of a request: a small evaluator of the parts that they use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from tests.processes.fault_proxy import Request

POLICIES = Path(__file__).parent.parent.parent / "deploy" / "iam"
ROLES = sorted(path.stem for path in POLICIES.glob("*.json"))
ARN = "arn:aws:s3:::"


def policy_text(role: str, *, bucket: str, prefix: str, log: str = "*") -> str:
    """Fill in a role's policy, as docs/production/security.md says."""
    text = (POLICIES / f"{role}.json").read_text()
    return text.replace("BUCKET", bucket).replace("PREFIX", prefix).replace("LOG", log)


@dataclass(frozen=True, slots=True)
class Access:
    """An action on a resource; ``prefix`` is that of a list."""

    action: str
    resource: str
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """One action on one pattern of resources, with the patterns of a list's prefix."""

    action: str
    resource: str
    prefixes: tuple[str, ...] | None = None

    def allows(self, access: Access) -> bool:
        """Whether this grant is enough."""
        allowed = self.action == access.action and _matches(self.resource, access.resource)
        if self.prefixes is None or access.prefix is None:
            return allowed
        return allowed and any(_matches(prefix, access.prefix) for prefix in self.prefixes)


def grants_of(policy: str) -> list[Grant]:
    """Split a policy into what it grants; ValueError for a part that is not evaluated here."""
    document = json.loads(policy)
    _only(document, "Version", "Statement")
    return [grant for statement in document["Statement"] for grant in _grants_of(statement)]


def _grants_of(statement: Mapping[str, Any]) -> Iterator[Grant]:
    _only(statement, "Sid", "Effect", "Action", "Resource", "Condition")
    if statement["Effect"] != "Allow":
        raise ValueError(statement["Effect"])
    prefixes = None
    if "Condition" in statement:
        _only(statement["Condition"], "StringLikeIfExists")
        _only(statement["Condition"]["StringLikeIfExists"], "s3:prefix")
        prefixes = tuple(statement["Condition"]["StringLikeIfExists"]["s3:prefix"])
    for action in statement["Action"]:
        for resource in statement["Resource"]:
            yield Grant(action, resource, prefixes)


def _only(found: Mapping[str, Any], *known: str) -> None:
    if unknown := found.keys() - set(known):
        raise ValueError(sorted(unknown))


def _matches(pattern: str, text: str) -> bool:
    """As in a policy: a star stands for anything, slashes included."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def accesses_of(request: Request) -> list[Access]:
    """Return what a request, with the bucket in its path, asks for."""
    parts = urlsplit(request.path)
    bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    match request.method:
        case "GET" if not key and "list-type" in query:
            return [Access("s3:ListBucket", ARN + bucket, query.get("prefix", [None])[0])]
        case "GET" | "HEAD" if key and not query:
            return [Access("s3:GetObject", f"{ARN}{bucket}/{key}")]
        case "PUT" if key and not query:
            return [Access("s3:PutObject", f"{ARN}{bucket}/{key}"), *_read_for_condition(request, bucket, key)]
        case "DELETE" if key and not query:
            return [Access("s3:DeleteObject", f"{ARN}{bucket}/{key}")]
    raise ValueError(f"{request.method} {request.path}")


def _read_for_condition(request: Request, bucket: str, key: str) -> list[Access]:
    """To compare the current version is to read it."""
    conditional = any(name.lower() == "if-match" for name, _ in request.headers)
    return [Access("s3:GetObject", f"{ARN}{bucket}/{key}")] if conditional else []
