"""How long it takes to list the logs of a store that answers each request after a while, and in how many requests.

python -m benchmarks.listing [LOGS] [SECONDS] [FRAGMENTS]: 10,000 logs, 0.03 s a request, 2 objects of each log
"""

from __future__ import annotations

import resource
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from wal3_core import MemoryStore, list_logs
from wal3_core.format.paths import MANIFEST
from wal3_core.store.object_store import ObjectMeta

PAGE = 1_000


class PagedStore(MemoryStore):
    """A store in memory that lists as S3 does: a thousand names by a request, each after the same time."""

    def __init__(self, paths: list[str], request_s: float) -> None:
        super().__init__(name="listing")
        self._paths = sorted(paths)
        self._request_s = request_s
        self.num_requests = 0

    def _answer(self) -> None:
        self.num_requests += 1
        time.sleep(self._request_s)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder."""
        at = max(bisect_left(self._paths, folder), bisect_right(self._paths, start_after))
        while True:
            self._answer()
            page = [path for path in self._paths[at : at + PAGE] if path.startswith(folder)]
            yield from (ObjectMeta(path, 1, 0) for path in page)
            if len(page) < PAGE:
                return
            at += PAGE

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder."""
        found, at = [], bisect_left(self._paths, folder)
        while at < len(self._paths) and self._paths[at].startswith(folder):
            name, slash, _ = self._paths[at].removeprefix(folder).partition("/")
            if slash:
                found.append(f"{folder}{name}/")
            at = bisect_left(self._paths, f"{folder}{name}0" if slash else f"{self._paths[at]}\0", lo=at + 1)
        for _ in range(0, max(1, len(found)), PAGE):
            self._answer()
        return found


def main(num_logs: int = 10_000, request_s: float = 0.03, num_fragments: int = 2) -> None:
    """List the logs, and print what that took."""
    life = f"Life={'0' * 32}/log/Bucket={'0' * 16}/Writer={'0' * 16}"
    objects = [f"{life}/FragmentSeqNo={number:016x}.parquet" for number in range(num_fragments)]
    logs = [f"tenant-{number:05}" for number in range(num_logs)]
    store = PagedStore([f"{log}/{path}" for log in logs for path in (MANIFEST, *objects)], request_s)
    begun_s, cpu_s = time.monotonic(), time.process_time()
    found = list(list_logs(store))
    taken_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    assert found == logs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{len(found):,} logs of {num_fragments:,} fragments, {request_s * 1e3:.0f} ms a request: {taken_s:.1f} s,"
        f" {cpu_s:.1f} s of CPU, {store.num_requests:,} requests, peak {peak} MiB"
    )


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((int, float, int), sys.argv[1:], strict=False)))
