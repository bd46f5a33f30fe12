from __future__ import annotations

from tests.orchestration.run_requests import run_request


def test_run_of_one_log_carries_the_tag_that_keeps_others_off_it() -> None:
    request = run_request("beta/one", "beta/one")

    assert (request.partition_key, dict(request.tags)) == ("beta/one", {"wal3/log": "beta/one"})
