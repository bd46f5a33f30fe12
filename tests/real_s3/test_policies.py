"""Each role in deploy/iam can do its work by its policy, and no more; what is denied says so and loses nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from tests.real_s3.policies import ROLES, grants_of, policy_text
from tests.real_s3.roles import EvaluatingServer, Place, Server
from tests.real_s3.work import AT_ONCE, CURSOR, DIRTY, LOG, MARKED, PIN, UNPINNED, WORK, back_up
from tests.spec.rolling import grow, mark, marked
from tests.stores import life_path
from wal3_core import (
    CursorStore,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    NotDurableError,
    PinStore,
    RollUp,
    RollUpOptions,
    StoreDeniedError,
    collect,
    copy,
    destroy,
    scrub,
    update_copy,
)
from wal3_core.cli.program import cli
from wal3_core.format.paths import cursor_path, pin_path

pytestmark = pytest.mark.slow
ACTIONS = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"}
UPLOAD_DENIED = "these credentials need s3:PutObject for .*/Life=.*/log/"
LIMITED = [role for role in ROLES if role != "admin"]


def work(server: Server, role: str, place: Place) -> None:
    store = server.store(role, place)
    if role == "backup":
        elsewhere = Place(place.bucket, f"{place.prefix}-backup")
        back_up(store, server.store("admin", elsewhere))
    else:
        WORK[role](store)


def test_every_policy_grants_known_actions_within_the_prefix() -> None:
    for role in ROLES:
        for grant in grants_of(policy_text(role, bucket="b", prefix="p")):
            assert grant.action in ACTIONS
            within = "arn:aws:s3:::b" if grant.action == "s3:ListBucket" else "arn:aws:s3:::b/p/"
            assert grant.resource == within or grant.resource.startswith("arn:aws:s3:::b/p/")


@pytest.mark.parametrize("role", ROLES)
def test_role_can_do_its_work_and_is_granted_nothing_else(server: Server, place: Place, role: str) -> None:
    work(server, role, place)

    assert scrub(place.open(), UNPINNED).sound
    if isinstance(server, EvaluatingServer):
        proxy = server.proxies[role]
        assert [grant for grant in proxy.grants if not any(map(grant.allows, proxy.seen))] == []


@pytest.mark.parametrize("role", ROLES)
def test_role_reaches_nothing_outside_its_prefix(server: Server, place: Place, role: str) -> None:
    outside = Place(place.bucket, f"{place.prefix}-other")
    outside.open().create("a", b"kept")
    store = server.store(role, place, at=outside)

    asked: list[tuple[str, Callable[[], object]]] = [
        ("s3:GetObject", lambda: store.read("a")),
        ("s3:GetObject", lambda: store.head("a")),
        ("s3:PutObject", lambda: store.create("b", b"")),
        ("s3:DeleteObject", lambda: store.delete("a")),
        ("s3:ListBucket", lambda: list(store.list_objects(""))),
    ]
    for action, ask in asked:
        with pytest.raises(StoreDeniedError, match=f"these credentials need {action} for {outside.prefix}/"):
            ask()

    assert outside.open().read("a") == b"kept"
    assert outside.open().read("b") is None


@pytest.mark.parametrize("role", LIMITED)
def test_role_limited_to_one_log_reads_no_other(server: Server, place: Place, role: str) -> None:
    store = server.store(role, place, log=UNPINNED)

    assert len(list(LogReader.open(store, UNPINNED).records())) > 0
    with pytest.raises(StoreDeniedError, match=f"{LOG}/manifest"):
        list(LogReader.open(store, LOG).records())


@pytest.mark.parametrize("role", ["reader", "consumer", "backup"])
def test_append_without_the_right_to_it_is_not_durable_and_names_object_and_request(
    server: Server, place: Place, role: str
) -> None:
    store = server.store(role, place)

    with (
        LogWriter.open(store, LOG) as writer,
        pytest.raises(NotDurableError, match=UPLOAD_DENIED) as caught,
    ):
        writer.append(b"denied")

    assert isinstance(caught.value.__cause__, StoreDeniedError)
    assert b"denied" not in [record.body for record in LogReader.open(place.open(), LOG).records()]
    assert scrub(place.open(), LOG).sound


def test_maintenance_cannot_append(server: Server, place: Place) -> None:
    """It can change the manifest, but upload no fragment."""
    store = server.store("maintenance", place)

    with (
        LogWriter.open(store, LOG) as writer,
        pytest.raises(NotDurableError, match=UPLOAD_DENIED),
    ):
        writer.append(b"denied")


@pytest.mark.parametrize("role", ["reader", "writer", "maintenance", "backup"])
def test_only_consumers_move_cursors(server: Server, place: Place, role: str) -> None:
    cursors = CursorStore(server.store(role, place), LOG)
    witness = cursors.load(CURSOR)
    assert witness is not None

    with pytest.raises(StoreDeniedError, match=f"cursor/{CURSOR}.* need s3:PutObject"):
        cursors.save(CURSOR, LogPosition(1, 0), witness)
    with pytest.raises(StoreDeniedError, match=f"cursor/{CURSOR}.* need s3:PutObject"):
        cursors.delete(CURSOR)

    assert CursorStore(place.open(), LOG).load(CURSOR) == witness


@pytest.mark.parametrize("role", ["reader", "consumer", "writer", "backup"])
def test_only_maintenance_collects(server: Server, place: Place, role: str) -> None:
    store = server.store(role, place)

    with pytest.raises(StoreDeniedError, match="gc/.* need s3:PutObject"):
        collect(store, UNPINNED, options=AT_ONCE)

    report = scrub(place.open(), UNPINNED)
    assert report.sound
    assert LogReader.open(place.open(), UNPINNED).manifest().first.position.offset == 1


# A consumer for all logs can move the cursor of roll-ups: its policy names the logs that it consumes.
@pytest.mark.parametrize("role", ["reader", "writer", "backup"])
def test_only_maintenance_rolls_up_and_every_role_sees_what_is_marked(server: Server, place: Place, role: str) -> None:
    rollup = RollUp(server.store(role, place), DIRTY[0], options=RollUpOptions(take_all=True))

    plan = rollup.read()
    with pytest.raises(StoreDeniedError, match="these credentials need s3:PutObject for .*dirty/"):
        rollup.finish(plan, plan.selected)

    assert plan.selected == (MARKED, f"{MARKED}/eu")
    assert plan.guessed is not None
    assert "need s3:PutObject for" in plan.guessed
    assert [each.log for each in RollUp(place.open(), DIRTY[0]).read().logs] == [MARKED, f"{MARKED}/eu"]


def test_maintenance_of_some_logs_appends_to_no_dirty_log(server: Server, place: Place) -> None:
    store = server.store("maintenance", place, log=MARKED)

    with pytest.raises(StoreDeniedError, match="dirty/"):
        RollUp(store, DIRTY[0]).read()


def test_writer_with_the_dirty_logs_beside_its_own_marks_in_every_lane(server: Server, place: Place) -> None:
    marker = grow(place.open(), MARKED, dirty_log=None)
    store = server.store("writer", place, log="dirty/*")

    for log in ("dirty/server-2", "dirty/server-2/1"):
        mark(store, marker, dirty_log=log)

    assert marked(place.open(), "dirty/server-2/1") == {MARKED: (marker.start, marker.limit.offset)}
    with pytest.raises(StoreDeniedError, match=MARKED):
        LogReader.open(store, MARKED).manifest()


def test_command_of_a_role_that_only_looks_says_by_which_clock_ages_are(
    evaluating: EvaluatingServer, place: Place
) -> None:
    store = evaluating.store("reader", place)

    for command in (("dirty", "show"), ("dirty", "rollup", "--dry-run"), ("fleet", "status")):
        result = CliRunner().invoke(cli, ["--store", store.url, *command], catch_exceptions=False)

        assert result.exit_code == 0
        assert result.stderr.count("ages are by this machine's clock") == 1
        assert "these credentials need s3:PutObject for" in result.stderr


@pytest.mark.parametrize("role", LIMITED)
def test_no_role_but_admin_deletes_a_log_s_documents(server: Server, place: Place, role: str) -> None:
    root = place.open()
    paths = [
        f"{LOG}/manifest/MANIFEST.json",
        *(life_path(root, LOG, path) for path in (cursor_path(CURSOR), pin_path(PIN))),
    ]
    store = server.store(role, place)

    for path in paths:
        with pytest.raises(StoreDeniedError, match=f"need s3:DeleteObject for .*{path}"):
            store.delete(path)
        assert root.read(path) is not None


@pytest.mark.parametrize("role", sorted({*LIMITED} - {"maintenance"}))
def test_no_role_but_maintenance_and_admin_deletes_a_fragment(server: Server, place: Place, role: str) -> None:
    root = place.open()
    [*pointers] = LogReader.open(root, LOG).pointers()
    path = life_path(root, LOG, pointers[0].path)

    with pytest.raises(StoreDeniedError, match=pointers[0].path):
        server.store(role, place).delete(path)

    assert root.read(path) is not None


def test_update_of_a_copy_reads_its_source_and_appends_to_the_copy(server: Server, place: Place) -> None:
    elsewhere = Place(place.bucket, f"{place.prefix}-backup")
    copy(LogAt(place.open(), LOG), LogAt(elsewhere.open(), LOG))
    with LogWriter.open(place.open(), LOG) as writer:
        writer.append(b"new")

    updated = update_copy(LogAt(server.store("reader", place), LOG), LogAt(server.store("writer", elsewhere), LOG))

    assert updated.num_records == 1
    assert scrub(elsewhere.open(), LOG).sound


def test_update_of_a_copy_moves_cursors_with_the_right_to_it(server: Server, place: Place) -> None:
    elsewhere = Place(place.bucket, f"{place.prefix}-backup")
    copy(LogAt(place.open(), LOG), LogAt(elsewhere.open(), LOG))

    with pytest.raises(StoreDeniedError, match=f"cursor/{CURSOR}.* need s3:PutObject"):
        update_copy(LogAt(place.open(), LOG), LogAt(server.store("writer", elsewhere), LOG), with_cursors=True)
    updated = update_copy(LogAt(place.open(), LOG), LogAt(server.store("consumer", elsewhere), LOG), with_cursors=True)

    assert updated.num_cursors == 1


@pytest.mark.parametrize("role", ["reader", "consumer", "backup"])
def test_role_that_cannot_write_the_manifest_destroys_nothing(server: Server, place: Place, role: str) -> None:
    with pytest.raises(StoreDeniedError, match=r"MANIFEST\.json.* need s3:PutObject"):
        destroy(server.store(role, place), LOG, also_pinned=True)

    assert scrub(place.open(), LOG).sound


def test_pin_of_a_person_is_not_deleted_by_a_backup(server: Server, place: Place) -> None:
    with pytest.raises(StoreDeniedError, match=f"pin/{PIN}.* need s3:PutObject"):
        PinStore(server.store("backup", place), LOG).delete(PIN)

    assert PinStore(place.open(), LOG).load(PIN) is not None
