"""A store as each role sees it: a user of a server that enforces policies, or a proxy that evaluates them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import boto3

from tests.processes.fault_proxy import Fault, FaultProxy, Request, listening
from tests.real_s3.policies import Access, Grant, accesses_of, grants_of, policy_text
from wal3_core import open_store
from wal3_core.store.object_store import ObjectStore

OPTIONS = os.environ.get("WAL3_TEST_S3_OPTIONS", "")
# Users of the server that may be given policies, one for each role; none if the server enforces no policies.
USERS = frozenset(os.environ.get("WAL3_TEST_S3_USERS", "").split())


@cache
def session_of(user: str | None) -> boto3.session.Session:
    """One session for all stores of a user, whose name is the access key; None is the user of the environment."""
    if user is None:
        return boto3.session.Session()
    return boto3.session.Session(aws_access_key_id=user, aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"])


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a bucket, with a store in it."""

    bucket: str
    prefix: str

    def open(self, options: str = OPTIONS, *, user: str | None = None) -> ObjectStore:
        """Open the store, as the one who may do everything unless a user is named."""
        return open_store(f"s3://{self.bucket}/{self.prefix}{options}", session=session_of(user))


class Server(Protocol):
    """Enforces the policy of a role on a store."""

    def store(self, role: str, place: Place, *, log: str = "*", at: Place | None = None) -> ObjectStore:
        """Open ``at`` (else ``place``) with the rights that a role has in ``place``."""


class RealServer:
    """Each role is a user of the server."""

    def store(self, role: str, place: Place, *, log: str = "*", at: Place | None = None) -> ObjectStore:
        """Attach the policy to the user by the server's IAM API, in place of any earlier one."""
        # For radosgw a star ends at the first slash, so each further part of a log's name needs one more policy.
        for name, logs in (("wal3", log), ("wal3-parts", f"{log}/*"), ("wal3-lanes", f"{log}/*/*")):
            _attach(role, name, policy_text(role, bucket=place.bucket, prefix=place.prefix, log=logs))
        # What a user has written belongs to that user: the owner of the bucket needs a policy, too, to read it.
        owner = os.environ["AWS_ACCESS_KEY_ID"]
        _attach(owner, "wal3", policy_text("admin", bucket=place.bucket, prefix=place.prefix))
        return (at or place).open(user=role)


def _attach(user: str, name: str, policy: str) -> None:
    iam = session_of(None).client("iam", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    iam.put_user_policy(UserName=user, PolicyName=name, PolicyDocument=policy)


@dataclass
class PolicyProxy(FaultProxy):
    """Denies what no grant allows; ``seen`` is everything that was asked for."""

    grants: list[Grant] = field(default_factory=list)
    seen: set[Access] = field(default_factory=set)

    def decide(self, request: Request) -> tuple[Fault | None, float]:
        """Deny or pass on."""
        asked = accesses_of(request)
        self.seen.update(asked)
        allowed = all(any(grant.allows(access) for grant in self.grants) for access in asked)
        return None if allowed else Fault.DENY, 0.0


class EvaluatingServer:
    """Each role is a proxy in front of a server that lets everybody do everything."""

    def __init__(self, endpoint: str, stack: ExitStack) -> None:
        self._endpoint = endpoint
        self._stack = stack
        self.proxies: dict[str, PolicyProxy] = {}

    def store(self, role: str, place: Place, *, log: str = "*", at: Place | None = None) -> ObjectStore:
        """Start a proxy for the role."""
        policy = policy_text(role, bucket=place.bucket, prefix=place.prefix, log=log)
        proxy = self._stack.enter_context(listening(PolicyProxy(self._endpoint, grants=grants_of(policy))))
        self.proxies[role] = proxy
        return (at or place).open(f"{OPTIONS}{'&' if OPTIONS else '?'}endpoint={proxy.endpoint}")
