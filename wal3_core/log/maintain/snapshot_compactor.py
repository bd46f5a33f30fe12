"""Repacks one log's tree of snapshots, in steps that may be repeated, stopped, and run by two at once.

A step uploads its snapshots, then swaps them into the manifest by CAS. Those replaced, or uploaded in vain, are
collected as orphans. Keeps INV-7 and INV-8. Source: docs/protocol/compaction.md, "Snapshot compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import InvalidRequestError, UnavailableError
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import MANIFEST
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.format.strict_json import Shown
from wal3_core.log.log_stores import LogStores
from wal3_core.log.tree.shape import Repack, Repacker, Shape, build_repack, measure_shape
from wal3_core.options import SnapshotCompactorOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.documents.snapshot_store import SnapshotMissingError
from wal3_core.store.object_store import ObjectStore, share_of

if TYPE_CHECKING:
    from wal3_core.log.tree.shape import Rewrite

    V = TypeVar("V")
    T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackFinding(Shown):
    """Some siblings that would be repacked, and why: ``num_nodes`` of them, with ``num_pointers`` pointers.

    ``where`` names the snapshot that holds them, or the manifest.
    """

    reason: str
    where: str
    depth: int
    num_nodes: int
    num_pointers: int

    SHOWN = "reason where depth nodes=num_nodes pointers=num_pointers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan(Shown):
    """What would be repacked in the tree as it is; nothing was changed for it.

    Repacking one finding may lead to another: siblings that shrink may then fit together.
    """

    log: str
    shape: Shape
    findings: tuple[RepackFinding, ...]

    @property
    def empty(self) -> bool:
        """Whether the tree is well shaped."""
        return not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCompactionReport(Shown):
    """What a compaction did: changes of the manifest, snapshots written, pointers packed, steps planned in vain."""

    log: str
    before: Shape
    after: Shape
    num_steps: int = 0
    num_written: int = 0
    num_bytes: int = 0
    num_pointers: int = 0
    num_overtaken: int = 0

    SHOWN = (
        "log steps=num_steps snapshots_written=num_written bytes_written=num_bytes pointers_packed=num_pointers"
        " overtaken=num_overtaken before after"
    )


class SnapshotCompactor:
    """Keeps one log's tree in shape where its writers do not; appends go on meanwhile."""

    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: SnapshotCompactorOptions | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._options = options = options or SnapshotCompactorOptions()
        self._stores = LogStores(
            store,
            log,
            runtime=runtime or shared_runtime(),
            retry=options.retry,
            snapshots_loaded_max=options.snapshots.loaded_max,
        )
        self.log = self._stores.log
        self._manifests, self._load = self._stores.manifests, self._stores.snapshots.load
        self._repacker = Repacker(options.snapshots, self._load, pointers_max=options.pointers_per_step_max)

    def shape(self, *, exact: bool = False) -> Shape:
        """Measure the tree: one GET, and when ``exact`` one a snapshot of depth 2."""
        return self._shape(self._manifests.load().manifest, self._load if exact else None)

    def _shape(self, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot] | None = None) -> Shape:
        return measure_shape(manifest, self._options.snapshots, load)

    def plan(self) -> SnapshotPlan:
        """Return what would be repacked, and why; loads the snapshots of depth 2 and writes nothing."""
        manifest = self._manifests.load().manifest
        findings = tuple(
            RepackFinding(
                reason=repack.reason,
                where=repack.parents[-1].path if repack.parents else MANIFEST,
                depth=repack.depth,
                num_nodes=len(repack.packed),
                num_pointers=repack.num_pointers,
            )
            for repack in self._repacker.findings(manifest)
        )
        return SnapshotPlan(log=self.log, shape=self._shape(manifest, self._load), findings=findings)

    def compact(
        self, progress: Callable[[int, int | None], None] = lambda _done, _total: None
    ) -> SnapshotCompactionReport:
        """Take steps until the tree is well shaped; ``progress`` gets the number of pointers packed so far.

        UnavailableError when others change the manifest too often; what was done by then stays.
        """
        base = self._manifests.load()
        shape = self._shape(base.manifest)
        done, vain = SnapshotCompactionReport(log=self.log, before=shape, after=shape), 0
        while vain < self._options.plans_max:
            try:
                repack = self._repacker.plan(base.manifest)
                if repack is None:
                    text = "log %s: %d pointers packed in %d steps"
                    MAINTAIN.info(text, self._manifests.url, done.num_pointers, done.num_steps)
                    return replace(done, after=self._shape(base.manifest))
                repacked = self._build(repack, base.manifest)
            except SnapshotMissingError as missing:
                base = self._manifests.load_newer(base, missing)
            else:
                # Snapshots first: the manifest must not refer to missing objects.
                self._upload(repacked.written)
                base, installed = self._install(base, repacked)
                if installed:
                    done, vain = _added(done, repack, repacked), 0
                    progress(done.num_pointers, None)
                    continue
            done, vain = replace(done, num_overtaken=done.num_overtaken + 1), vain + 1
        raise UnavailableError(
            f"log {self._manifests.url}: what was to be packed changed {vain} times over: try again when it is quieter"
        )

    def _build(self, repack: Repack, manifest: Manifest) -> Rewrite:
        needed = (*repack.opened, *repack.above)
        # At the same time, as each is small and far away.
        known = {pointer.path: each for pointer, each in zip(needed, self._ahead(self._load, needed), strict=True)}
        return build_repack(repack, self._options.snapshots, manifest, lambda pointer: known[pointer.path])

    def _upload(self, written: Iterable[Snapshot]) -> None:
        for _ in self._ahead(lambda snapshot: self._stores.snapshots.write(snapshot, self._options.retry), written):
            pass

    def _ahead(self, call: Callable[[V], T], values: Iterable[V]) -> Iterator[T]:
        share, count = share_of(self._stores.objects), self._options.requests_ahead
        return map_ahead(self._stores.runtime, call, values, count=count, share=share)

    def _install(self, base: Installed, repacked: Rewrite) -> tuple[Installed, bool]:
        """Change the manifest by CAS, as long as it holds what is replaced, under the same fence; tell whether it was.

        Returns the newest manifest.
        """
        fence = base.manifest.fence
        for _ in range(self._options.rebases_max):
            # A moved fence means that unreferenced uploads may be deleted: these were some of them.
            if base.manifest.fence != fence:
                return base, False
            try:
                changed = base.manifest.apply_repack(repacked.pointers, repacked.replaced)
            except InvalidRequestError:
                # Gone because a CAS of ours was applied unanswered, or another compactor did the same.
                held = base.manifest.pointers
                return base, all(pointer in held for pointer in repacked.pointers)
            outcome = self._manifests.install(changed, base)
            if isinstance(outcome, Installed):
                return outcome, True
            base = self._manifests.load()
        message = f"log {self._manifests.url}: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)


def _added(done: SnapshotCompactionReport, repack: Repack, repacked: Rewrite) -> SnapshotCompactionReport:
    """Count one more step."""
    return replace(
        done,
        num_steps=done.num_steps + 1,
        num_written=done.num_written + len(repacked.written),
        num_bytes=done.num_bytes + repacked.num_bytes,
        num_pointers=done.num_pointers + repack.num_pointers,
    )
