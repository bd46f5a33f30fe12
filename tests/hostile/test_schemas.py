"""Sound Parquet that is no fragment of wal3: read as the same records, or refused. Nothing in it is ever executed."""

from __future__ import annotations

import base64
import io
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile.forge import BINARY, LIST, STRUCT, Forgery, Items, Struct
from tests.hostile.specimens import KEYED, decoded, fragment, pointer_to, table_of, written
from wal3_core.format.record import Record

TABLE = table_of(KEYED)
COUNT = len(KEYED)
BODIES = [body for _, body in KEYED]


def read(data: bytes) -> list[Record] | None:
    return decoded(data, pointer_to(data, COUNT, fragment(KEYED)[1].setsum.hexdigest()))


def replaced(name: str, column: pa.Array) -> pa.Table:
    return TABLE.set_column(TABLE.column_names.index(name), name, column)


def nested(kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        return pa.array([{"body": body} for body in BODIES], kind)
    return pa.array([[body] for body in BODIES], kind)


OTHERS = {
    "no columns": TABLE.select([]),
    "a column too many": TABLE.append_column("more", TABLE["body"]),
    "no body": TABLE.drop(["body"]),
    "no offset": TABLE.drop(["offset"]),
    "another order": TABLE.select(["body", "key", "timestamp_us", "offset"]),
    "another case": TABLE.rename_columns(["Offset", "timestamp_us", "key", "body"]),
    "a column twice": pa.table(
        [TABLE["offset"], TABLE["offset"], TABLE["key"], TABLE["body"]],
        names=["offset", "offset", "key", "body"],
    ),
    "signed offsets": replaced("offset", TABLE["offset"].cast(pa.int64())),
    "short offsets": replaced("offset", TABLE["offset"].cast(pa.uint32())),
    "offsets in floats": replaced("offset", TABLE["offset"].cast(pa.float64())),
    "offsets in decimals": replaced("offset", TABLE["offset"].cast(pa.decimal128(20, 0))),
    "times": replaced("timestamp_us", TABLE["timestamp_us"].cast(pa.int64()).cast(pa.timestamp("us"))),
    "bodies of text": replaced("body", pa.array([(body or b"").decode() for body in BODIES])),
    "bodies of one length": replaced("body", pa.array([b"12345678"] * COUNT, pa.binary(8))),
    "bodies of numbers": replaced("body", pa.array(range(COUNT))),
    "bodies in lists": replaced("body", nested(pa.list_(pa.binary()))),
    "bodies in structs": replaced("body", nested(pa.struct([("body", pa.binary())]))),
    "bodies in maps": replaced("body", pa.array([[(b"k", b"v")]] * COUNT, pa.map_(pa.binary(), pa.binary()))),
    "bodies in a dictionary": replaced("body", TABLE["body"].combine_chunks().dictionary_encode()),
    "bodies that are views": replaced("body", TABLE["body"].cast(pa.binary_view())),
    "an offset that is null": replaced("offset", pa.array([None, *range(43, 42 + COUNT)], pa.uint64())),
    "a body that is null": replaced("body", pa.array([None, None, *BODIES[2:]], pa.binary())),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_schema_is_an_error(name: str) -> None:
    assert read(written(OTHERS[name])) is None


SAME = {
    "its own": TABLE,
    "long columns": replaced("body", TABLE["body"].cast(pa.large_binary())),
    "columns that are never null": TABLE.cast(
        TABLE.schema.set(0, TABLE.schema.field(0).with_nullable(nullable=False)).set(
            1, TABLE.schema.field(1).with_nullable(nullable=False)
        )
    ),
}
FORMS = {
    "no dictionary": {"use_dictionary": False},
    "dictionary": {"use_dictionary": True},
    "dictionary that overflows": {"use_dictionary": True, "dictionary_pagesize_limit": 16},
    "rows in groups": {"row_group_size": 7},
    "small pages": {"data_page_size": 16},
    "second kind of pages": {"data_page_version": "2.0"},
    "schema not kept": {"store_schema": False},
    "page index": {"write_page_index": True},
    "checksums": {"write_page_checksum": True},
    "snappy": {"compression": "snappy"},
    "gzip": {"compression": "gzip"},
    "LZ4": {"compression": "lz4"},
    "none": {"compression": "none"},
    "first version": {"version": "1.0", "store_schema": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SAME)
def test_same_records_in_another_writer_s_form_are_read(name: str, form: str) -> None:
    good = decoded(*fragment(KEYED))

    assert read(written(SAME[name], **{"compression": "zstd", **FORMS[form]})) == good


REFUSED_FORMS = {
    "brotli": {"compression": "brotli"},
    "more row groups than a fragment has": {"row_group_size": 1, "rows": 65},
    "values that repeat those before": {"use_dictionary": False, "column_encoding": {"body": "DELTA_BYTE_ARRAY"}},
    "lengths apart": {"use_dictionary": False, "column_encoding": {"body": "DELTA_LENGTH_BYTE_ARRAY"}},
    "differences": {"use_dictionary": False, "column_encoding": {"offset": "DELTA_BINARY_PACKED"}},
    "bytes apart": {"use_dictionary": False, "column_encoding": {"offset": "BYTE_STREAM_SPLIT"}},
}


@pytest.mark.parametrize("form", REFUSED_FORMS)
def test_form_that_no_fragment_has_is_an_error(form: str) -> None:
    options = dict(REFUSED_FORMS[form])
    rows = options.pop("rows", COUNT)
    assert isinstance(rows, int)
    messages = (KEYED * 2)[:rows]
    _, pointer = fragment(messages)
    data = written(table_of(messages), **options)

    assert decoded(data, pointer) is None


def test_no_rows_are_an_error_where_the_pointer_names_records() -> None:
    empty = written(TABLE.slice(0, 0))

    assert read(empty) is None
    assert decoded(empty, pointer_to(empty, 0)) == []


def test_encrypted_file_is_an_error() -> None:
    stored, pointer = fragment(KEYED)
    forgery = Forgery.of(stored)
    for number, kind in ((8, STRUCT), (9, BINARY)):
        value = Struct([[1, STRUCT, Struct()]]) if kind == STRUCT else b"key"
        forgery.footer.set(number, value, kind)

    # Signed and not encrypted: readable, and verified by the setsum.
    assert decoded(forgery.build(), pointer) == decoded(stored, pointer)
    for chunk in forgery.chunks(3):
        chunk.entry.set(8, Struct([[1, STRUCT, Struct()]]), STRUCT)
        chunk.entry.set(9, b"metadata", BINARY)
    assert decoded(forgery.build(), pointer) is None


def _described(stored: bytes, **changes: bytes | None) -> bytes:
    """Change or remove entries of a file's metadata."""
    forgery = Forgery.of(stored)
    kept = {bytes(each[1]): each for each in forgery.footer.items(5)}
    for name, value in changes.items():
        kept.pop(f"wal3.{name}".encode(), None)
        if value is not None:
            pair = Struct([[1, BINARY, f"wal3.{name}".encode()], [2, BINARY, value]])
            kept[f"wal3.{name}".encode()] = pair
    forgery.footer.set(5, Items(STRUCT, list(kept.values())), LIST)
    return forgery.build()


@pytest.mark.parametrize("name", ["writer", "fragment_seq_no", "setsum", "key_index"])
@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"[]", b"0" * 64, b"[[" * 10_000, b"9" * 100_000])
def test_contradicting_metadata_is_an_error_and_missing_metadata_is_not(name: str, value: bytes) -> None:
    stored, pointer = fragment(KEYED)

    assert decoded(_described(stored, **{name: value}), pointer) is None
    assert decoded(_described(stored, **{name: None}), pointer) == decoded(stored, pointer)


def test_null_position_is_an_error_even_where_an_index_uses_it() -> None:
    stored, pointer = fragment(KEYED)
    metadata = pq.read_metadata(io.BytesIO(stored)).metadata
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, OTHERS["an offset that is null"].schema) as writer:
        writer.write_table(OTHERS["an offset that is null"])
        writer.add_key_value_metadata({name: value for name, value in metadata.items() if name.startswith(b"wal3.")})

    assert decoded(sink.getvalue(), pointer) is None


def test_duplicate_metadata_is_an_error_or_the_right_records() -> None:
    stored, pointer = fragment(KEYED)
    forgery = Forgery.of(stored)
    pairs = forgery.footer.items(5)
    lie = Struct([[1, BINARY, b"wal3.setsum"], [2, BINARY, b"0" * 64]])

    for places in ([lie, *pairs], [*pairs, lie]):
        forgery.footer.set(5, Items(STRUCT, places), LIST)
        assert decoded(forgery.build(), pointer) in (None, decoded(stored, pointer))


class Runs:
    """Executed by a pickle, if it were ever loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_pickle_in_a_stored_schema_is_never_executed(tmp_path: Path) -> None:
    """Arrow once unpickled data from a file's schema."""
    ran = tmp_path / "ran"
    for name in ("arrow.py_extension_type", "pandas", "arrow.opaque"):
        loaded = {
            b"ARROW:extension:name": name.encode(),
            b"ARROW:extension:metadata": pickle.dumps(Runs(str(ran))),
        }
        field = pa.field("body", pa.binary(), metadata=loaded)
        schema = pa.schema([*list(TABLE.schema)[:3], field], metadata={b"pandas": pickle.dumps(Runs(str(ran)))})
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, schema) as writer:
            writer.write_table(pa.table(TABLE.columns, schema=schema))

        found = read(sink.getvalue())

        assert found in (None, decoded(*fragment(KEYED)))
        assert not ran.exists()


@pytest.mark.parametrize("schema", [b"", b"\0", b"=" * 100, base64.b64encode(b"\xff" * 400), b"A" * 4000])
def test_invalid_stored_schema_is_an_error_or_ignored(schema: bytes) -> None:
    forgery = Forgery.of(written(TABLE))
    for pair in forgery.footer.items(5):
        assert isinstance(pair, Struct)
        if pair[1] == b"ARROW:schema":
            pair.set(2, schema, BINARY)

    assert read(forgery.build()) in (None, decoded(*fragment(KEYED)))
