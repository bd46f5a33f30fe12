"""Each check on stored bytes, left out on purpose, lets an attack through that it otherwise refuses.

So every check is needed, and the attacks of these tests reach the check they are for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.hostile.bombs import BOMBS
from tests.hostile.documents import content, load, pointer_of, sealed, stored
from tests.hostile.forge import Forgery
from tests.hostile.specimens import KEYED, MIB, PLAIN, fragment, table_of, written
from tests.mutations import Mutation, applied
from wal3_core.errors import CorruptError
from wal3_core.format import parquet, strict_json
from wal3_core.format.snapshot import Snapshot

Attack = "Callable[[], object]"


def _document(name: str, **changes: object) -> bytes:
    return sealed(name, json.dumps({**content(name), **changes}, separators=(",", ":")).encode())


def _decode(data: bytes, messages: list[tuple[bytes | None, bytes | None]] = PLAIN) -> object:
    return parquet.decode(data, fragment(messages)[1], expanded_bytes_max=16 * MIB)


def flipped_manifest() -> object:
    return load("manifest", stored("manifest").replace(b'"generation":1', b'"generation":3'))


def flipped_snapshot() -> object:
    return load("snapshot", stored("snapshot").replace(b'"fence":0', b'"fence":8'))


def duplicate_key() -> object:
    text = strict_json.dump(content("cursor")).replace(b'"generation":', b'"generation":7,"generation":')
    return load("cursor", sealed("cursor", text))


def unknown_field() -> object:
    return load("cursor", _document("cursor", more=1))


def fraction() -> object:
    return load("cursor", _document("cursor", epoch_us=7.5))


def number_beyond_u64() -> object:
    return load("cursor", _document("cursor", epoch_us=2**64))


def truth_for_a_number() -> object:
    return load("cursor", _document("cursor", epoch_us=True))


def too_many_epochs() -> object:
    entry = content("manifest")["epochs"][0]
    return load("manifest", _document("manifest", epochs=[{**entry, "epoch": epoch} for epoch in range(17)]))


def document_beyond_its_size() -> object:
    return load("cursor", _document("cursor", writer="w" * 300_000))


def unbalanced_manifest() -> object:
    return load("manifest", _document("manifest", setsum="0" * 64))


def miscounted_manifest() -> object:
    return load("manifest", _document("manifest", num_records=13))


def snapshot_of_another_range() -> object:
    pointer = replace(pointer_of("snapshot"), num_records=7)
    return Snapshot.from_bytes(stored("snapshot"), pointer)


def damaged_page() -> object:
    """When the setsum is not verified, the page's own checksum remains."""
    data = written(
        table_of(KEYED), compression="none", use_dictionary=False, write_page_checksum=True, write_statistics=False
    )
    at = data.index(b"body 8")
    damaged = data[:at] + b"Body" + data[at + 4 :]
    pointer = fragment(KEYED)[1]
    return parquet.decode(damaged, pointer, expanded_bytes_max=16 * MIB, verify=False)


def other_bodies() -> object:
    """From a writer that states no setsum."""
    messages = [(None, bytes(reversed(body or b""))) for _, body in PLAIN]
    return _decode(written(table_of(messages).drop(["key"])))


def other_file() -> object:
    """A file whose metadata names another fragment."""
    forged = Forgery.of(fragment(PLAIN)[0]).build().replace(b"0123456789abcdef", b"fedcba9876543210")
    return _decode(forged)


def other_count() -> object:
    return parquet.decode(
        fragment(PLAIN)[0], replace(fragment(PLAIN)[1], num_records=39), expanded_bytes_max=16 * MIB, verify=False
    )


def other_types() -> object:
    table = table_of(PLAIN).drop(["key"])
    signed = table.set_column(0, "offset", table["offset"].cast(pa.int64()))
    return _decode(written(signed))


def shared_value() -> object:
    data, pointer = BOMBS["value_in_a_dictionary"]()
    # Beyond two gigabytes a column is impossible: a quarter of one is let through here.
    return parquet.decode(data, pointer, expanded_bytes_max=256 * MIB, verify=False)


def large_page() -> object:
    messages = [(None, bytes(2 * MIB))]
    data, pointer = fragment(messages)
    return parquet.decode(data, pointer, expanded_bytes_max=MIB)


def repeated_values() -> object:
    options = {"use_dictionary": False, "column_encoding": {"key": "PLAIN", "body": "DELTA_BYTE_ARRAY"}}
    return _decode(written(table_of(KEYED), **options), KEYED)


def endless_list() -> object:
    """More row groups than a fragment has, in an otherwise sound file, so that only the count reveals it."""
    messages = PLAIN * 13
    return _decode(written(table_of(messages).drop(["key"]), row_group_size=1), messages)


def many_pages() -> object:
    messages: list[tuple[bytes | None, bytes | None]] = [(None, b"")] * 20_000
    options = {"use_dictionary": False, "data_page_size": 1, "write_batch_size": 1, "compression": "none"}
    return _decode(written(table_of(messages).drop(["key"]), **options), messages)


LEFT_OUT: list[tuple[Mutation, Callable[[], object]]] = [
    (
        Mutation("checksum", "check_whole", "_1 != data[_:]", "_1 is None"),
        flipped_manifest,
    ),
    (
        Mutation("duplicates", "_object_of_pairs", "len(document) != len(pairs)", "False"),
        duplicate_key,
    ),
    (Mutation("unknown fields", "Fields.finish", "if self._left: ...", "if False: ..."), unknown_field),
    (
        Mutation("fractions", "load", "json.loads(..., parse_float=_)", "json.loads(..., parse_float=lambda _: 7)"),
        fraction,
    ),
    (
        Mutation("u64", "Fields.integer", "_1 or not 0 <= value <= U64_MAX", "_1"),
        number_beyond_u64,
    ),
    (
        Mutation("bools", "Fields.integer", "type(value) is not int", "not isinstance(value, int)"),
        truth_for_a_number,
    ),
    (
        Mutation("document's size", "_check_size", "len(data) > bytes_max", "False"),
        document_beyond_its_size,
    ),
    (
        Mutation("balance", "_check_balance", "balance != setsum", "False"),
        unbalanced_manifest,
    ),
    (
        Mutation("counts", "_check_counts", "held != (num_bytes, num_records)", "False"),
        miscounted_manifest,
    ),
    (
        Mutation("snapshot's pointer", "Snapshot.from_bytes", "depth != _ or _", "False"),
        snapshot_of_another_range,
    ),
    (
        Mutation(
            "page checksum",
            "open_file",
            "pq.ParquetFile(..., page_checksum_verification=True)",
            "pq.ParquetFile(..., page_checksum_verification=False)",
        ),
        damaged_page,
    ),
    (Mutation("setsum", "decode", "found != pointer.setsum", "False"), other_bodies),
    (
        Mutation("file's own words", "_check_names", "found is not None and _", "False"),
        other_file,
    ),
    (Mutation("count", "check_count", "found != pointer.num_records", "False"), other_count),
    (Mutation("schema", "check_schema", "not fitting", "False"), other_types),
    (
        Mutation("shared values", "_expand", "num_bytes += sum(_repeated_bytes(_) for _ in _)"),
        shared_value,
    ),
    (
        Mutation("expansion", "check_expansion", "num_bytes > expanded_bytes_max", "False"),
        large_page,
    ),
    (Mutation("encodings", "_page", "encoding not in encodings", "False"), repeated_values),
    (Mutation("pages", "measure", "num_pages > PAGES_MAX", "False"), many_pages),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mutation", "attack"), LEFT_OUT, ids=[mutation.name for mutation, _ in LEFT_OUT])
def test_attack_is_refused_and_succeeds_once_its_check_is_left_out(
    mutation: Mutation, attack: Callable[[], object]
) -> None:
    with pytest.raises(CorruptError):
        attack()
    with applied(mutation):
        attack()


def test_two_checks_tie_a_snapshot_s_bytes_to_its_name() -> None:
    """The hash itself, and the pointer that the content would have, path included."""
    stored_path = repr(pointer_of("snapshot").path)
    at_once = Mutation("hash", "Snapshot.from_bytes", "_1 != pointer.path", "_1 == ''")
    path = Mutation("pointer", "Snapshot.pointer_to", "snapshot_path(...)", stored_path)

    for each in (at_once, path):
        with applied(each), pytest.raises(CorruptError):
            flipped_snapshot()
    with applied(at_once), applied(path):
        flipped_snapshot()


def test_two_checks_keep_the_table_of_epochs_short() -> None:
    """The limit on the list's length, and the manifest's own."""
    counted = Mutation("list", "Fields.items", "len(value) > count_max", "False")
    epochs = Mutation("epochs", "_check_epochs", "_ or any(_1)", "any(_1)")

    for each in (counted, epochs):
        with applied(each), pytest.raises(CorruptError):
            too_many_epochs()
    with applied(counted), applied(epochs):
        too_many_epochs()


@pytest.mark.slow
def test_two_checks_keep_lists_in_a_footer_short() -> None:
    """That of the footer's reader, and that of the row groups of a fragment that is not arranged by key."""
    footer = Mutation("footer's", "_Reader._list", "count > count_max", "False")
    groups = Mutation("groups'", "check_schema", "len(footer.groups) > ITEMS_MAX", "False")

    for each in (footer, groups):
        with applied(each), pytest.raises(CorruptError):
            endless_list()
    with applied(footer), applied(groups):
        endless_list()
