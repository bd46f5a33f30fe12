"""Repacks one log's tree of snapshots, in steps that may be repeated, stopped, and run by two at once.

A step uploads its snapshots, then swaps them into the manifest by CAS, for exactly the run of pointers
they hold and under the fence they were made under. If that run has changed meanwhile, the step
is planned again from the manifest, which is all the state there is. Snapshots that were replaced, or
uploaded in vain, are collected as orphans. Keeps INV-7 and INV-8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, flag, function
from wal3_core.errors import InvalidRequestError, UnavailableError
from wal3_core.model.paths import MANIFEST, check_log_name
from wal3_core.model.repack import Repack, Repacked, Repacker, build_repack
from wal3_core.model.shape import Shape, measure_shape
from wal3_core.options import SnapshotCompactorOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.storage.documents.manifest_store import Installed, ManifestStore
from wal3_core.storage.documents.snapshot_store import SnapshotMissingError, SnapshotStore
from wal3_core.storage.object_store import a_store, log_store, share_of
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Snapshot, SnapshotPointer
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Some siblings that would be repacked, and why: ``num_nodes`` of them, with ``num_pointers`` pointers.

    ``where`` names the snapshot that holds them, or the manifest.
    """

    reason: str
    where: str
    depth: int
    num_nodes: int
    num_pointers: int

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "reason": self.reason,
            "where": self.where,
            "depth": self.depth,
            "nodes": self.num_nodes,
            "pointers": self.num_pointers,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """What would be repacked in the tree as it is; nothing was changed for it.

    Repacking one finding may lead to another: siblings that shrink may then fit together.
    """

    log: str
    shape: Shape
    findings: tuple[Finding, ...]

    @property
    def empty(self) -> bool:
        """Whether the tree is well shaped."""
        return not self.findings

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "shape": self.shape.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCompactionReport:
    """What a compaction did: changes of the manifest, snapshots written, pointers packed, steps planned in vain."""

    log: str
    before: Shape
    after: Shape
    num_steps: int = 0
    num_written: int = 0
    num_bytes: int = 0
    num_pointers: int = 0
    num_overtaken: int = 0

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "steps": self.num_steps,
            "snapshots_written": self.num_written,
            "bytes_written": self.num_bytes,
            "pointers_packed": self.num_pointers,
            "overtaken": self.num_overtaken,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


@dataclass(frozen=True, slots=True)
class _Taken:
    """The manifest has the result of a step."""

    base: Installed
    repack: Repack
    repacked: Repacked

    def added_to(self, done: SnapshotCompactionReport) -> SnapshotCompactionReport:
        return replace(
            done,
            num_steps=done.num_steps + 1,
            num_written=done.num_written + len(self.repacked.written),
            num_bytes=done.num_bytes + self.repacked.num_bytes,
            num_pointers=done.num_pointers + self.repack.num_pointers,
        )


@dataclass(frozen=True, slots=True)
class _Overtaken:
    """The manifest has changed: what a step was to replace is gone, or what it uploaded may be deleted."""

    base: Installed


class SnapshotCompactor:
    """Keeps one log's tree in shape where its writers do not; appends go on meanwhile."""

    @checked(store=a_store, log=check_log_name)
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: SnapshotCompactorOptions | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.log = check_log_name(log)
        self._share = share_of(log_store(store, log))
        self._runtime = runtime or shared_runtime()
        self._options = options or SnapshotCompactorOptions()
        self._manifests = ManifestStore(
            with_retries(log_store(store, log), self._runtime, self._options.retry), self._runtime, self._options.retry
        )
        self._snapshots = SnapshotStore(self._manifests, self._runtime, loaded_max=self._options.snapshots.loaded_max)
        self._repacker = Repacker(
            self._options.snapshots, self._snapshots.load, pointers_max=self._options.pointers_per_step_max
        )

    @checked(exact=flag)
    def shape(self, *, exact: bool = False) -> Shape:
        """Measure the tree: one GET, and when ``exact`` one a snapshot of depth 2."""
        return self._shape(self._manifests.load().manifest, self._snapshots.load if exact else None)

    def _shape(self, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot] | None = None) -> Shape:
        return measure_shape(manifest, self._options.snapshots, load)

    def plan(self) -> SnapshotPlan:
        """Return what would be repacked, and why; loads the snapshots of depth 2 and writes nothing."""
        manifest = self._manifests.load().manifest
        findings = tuple(map(_finding, self._repacker.findings(manifest)))
        return SnapshotPlan(log=self.log, shape=self._shape(manifest, self._snapshots.load), findings=findings)

    @checked(progress=function)
    def compact(
        self, progress: Callable[[int, int | None], None] = lambda _done, _total: None
    ) -> SnapshotCompactionReport:
        """Take steps until the tree is well shaped; ``progress`` gets the number of pointers packed so far.

        UnavailableError when others change the manifest too often; what was done by then stays.
        """
        base = self._manifests.load()
        shape = self._shape(base.manifest)
        done = SnapshotCompactionReport(log=self.log, before=shape, after=shape)
        vain = 0
        while vain < self._options.plans_max:
            step = self._step(base)
            if step is None:
                text = "log %s: %d pointers packed in %d steps"
                MAINTAIN.info(text, self._manifests.url, done.num_pointers, done.num_steps)
                return replace(done, after=self._shape(base.manifest))
            base = step.base
            if isinstance(step, _Overtaken):
                done, vain = replace(done, num_overtaken=done.num_overtaken + 1), vain + 1
            else:
                done, vain = step.added_to(done), 0
                progress(done.num_pointers, None)
        message = (
            f"log {self._manifests.url}: what was to be packed changed {vain} times over: try again when it is quieter"
        )
        raise UnavailableError(message)

    def _step(self, base: Installed) -> _Taken | _Overtaken | None:
        """Take one step; None when there is none to take."""
        try:
            repack = self._repacker.plan(base.manifest)
            if repack is None:
                return None
            repacked = self._build(repack, base.manifest)
        except SnapshotMissingError:
            newer = self._manifests.load()
            if newer.etag == base.etag:
                raise
            return _Overtaken(newer)
        # Snapshots first: the manifest must not refer to missing objects.
        self._upload(repacked.written)
        outcome = self._install(base, repacked)
        return _Taken(outcome, repack, repacked) if isinstance(outcome, Installed) else outcome

    def _build(self, repack: Repack, manifest: Manifest) -> Repacked:
        needed = (*repack.opened, *repack.above)
        # At the same time, as each is small and far away.
        loaded = map_ahead(
            self._runtime, self._snapshots.load, needed, count=self._options.requests_ahead, share=self._share
        )
        known = {pointer.path: snapshot for pointer, snapshot in zip(needed, loaded, strict=True)}
        return build_repack(repack, self._options.snapshots, manifest, lambda pointer: known[pointer.path])

    def _upload(self, written: Iterable[Snapshot]) -> None:
        def write(snapshot: Snapshot) -> None:
            self._snapshots.write(snapshot, self._options.retry)

        for _ in map_ahead(self._runtime, write, written, count=self._options.requests_ahead, share=self._share):
            pass

    def _install(self, base: Installed, repacked: Repacked) -> Installed | _Overtaken:
        """Change the manifest by CAS, as long as it holds what is replaced, under the same fence."""
        fence = base.manifest.fence
        for _ in range(self._options.rebases_max):
            # A moved fence means that unreferenced uploads may be deleted: these were some of them.
            if base.manifest.fence != fence:
                return _Overtaken(base)
            try:
                changed = base.manifest.apply_repack(repacked.pointers, repacked.replaced)
            except InvalidRequestError:
                # Gone because a CAS of ours was applied unanswered, or another compactor did the same.
                held = base.manifest.pointers
                return base if all(pointer in held for pointer in repacked.pointers) else _Overtaken(base)
            outcome = self._manifests.install(changed, base)
            if isinstance(outcome, Installed):
                return outcome
            base = self._manifests.load()
        message = f"log {self._manifests.url}: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)


def _finding(repack: Repack) -> Finding:
    return Finding(
        reason=repack.reason,
        where=repack.parents[-1].path if repack.parents else MANIFEST,
        depth=repack.depth,
        num_nodes=len(repack.packed),
        num_pointers=repack.num_pointers,
    )
