"""The hash of a row, the same here and in Spark: the XOR of its rows' hashes tells what a partition holds.

It is Spark's `xxhash64` over the columns, of which texts and lists are hashed by themselves first: so a text
that a file has in its dictionary is hashed once and not in every row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_ALL = 2**64 - 1
AT_ONCE_BYTES = 1 << 20
Words = npt.NDArray[np.uint64]


def in_spark(fields: Iterable[StructField]) -> Column:
    """The hash as an expression over these columns."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, DateType, DoubleType, StringType

    def value(field: StructField) -> Column:
        column = F.col(f"`{field.name}`")
        if isinstance(field.dataType, StringType | BinaryType | DoubleType | ArrayType):
            return F.xxhash64(column)
        return (F.unix_date(column) if isinstance(field.dataType, DateType) else column).cast("long")

    return F.xxhash64(*map(value, fields))


def of_rows(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The hashes of rows that are here."""
    found = np.full(rows.num_rows, SEED, np.uint64)
    for column in rows.columns:
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
            plain = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
            mixed = _mixed(_words(plain.cast(pa.int64())), found)
            found = np.where(_there(column), mixed, found) if column.null_count else mixed
        elif isinstance(column, pa.DictionaryArray):  # what is the same for all rows of a text is done once
            known = _stirred(np.append(_texts(column.dictionary), np.uint64(SEED)))
            found = _joined(known[_places(column)], found)
        else:
            found = _mixed(_hashed(column), found)
    return found.view(np.int64)


def _places(column: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """Where in the dictionary each text is; a null is after its end."""
    indices = column.indices.fill_null(len(column.dictionary)) if column.null_count else column.indices
    return np.asarray(indices.to_numpy(zero_copy_only=False))


def _hashed(column: pa.Array) -> Words:
    """Of each value of a column, its own hash; a null's is the seed."""
    seed = np.full(len(column), SEED, np.uint64)
    if pa.types.is_floating(column.type):
        bits = _bits(column.fill_null(0.0).to_numpy(zero_copy_only=False))
        return np.where(_there(column), _mixed(bits, seed), seed)
    if pa.types.is_list(column.type):
        return _listed(column, seed)
    return np.where(_there(column), _texts(column), seed) if column.null_count else _texts(column)


def _texts(column: pa.Array) -> Words:
    """XXH64 of each text, those of one length together."""
    _, places, content = column.buffers()
    ends = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    letters = np.frombuffer(content or b"", np.uint8)
    sizes = np.diff(ends)
    found = np.zeros(len(column), np.uint64)
    for size in np.unique(sizes).tolist():
        alike = np.flatnonzero(sizes == size)
        step = max(AT_ONCE_BYTES // max(size, 1), 1)
        for rows in (alike[at : at + step] for at in range(0, len(alike), step)):
            found[rows] = _xxh64(letters[ends[rows][:, None] + np.arange(size)])
    return found


def _listed(column: pa.Array, seed: Words) -> Words:
    whole = column.fill_null([]) if column.null_count else column
    lengths = pc.list_value_length(whole).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = whole.flatten()
    plain = flat.to_numpy(zero_copy_only=False)
    words = _bits(plain) if pa.types.is_floating(flat.type) else plain.astype(np.int64).view(np.uint64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])) if len(lengths) else lengths
    found = seed
    for place in range(int(lengths.max(initial=0))):
        longer = lengths > place
        found[longer] = _mixed(words[starts[longer] + place], found[longer])
    return found


def _there(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _words(column: pa.Array) -> Words:
    plain = column.fill_null(0) if column.null_count else column
    return np.asarray(plain.to_numpy(zero_copy_only=False)).view(np.uint64)


def _bits(values: npt.NDArray[np.float64]) -> Words:
    return np.asarray(values + 0.0).view(np.uint64)  # there is one zero


def _mixed(words: Words, seeds: Words) -> Words:
    """Spark's hash of a number, onto another hash."""
    return _joined(_stirred(words), seeds)


def _stirred(words: Words) -> Words:
    """The first half of it, which needs only the number."""
    found = words * np.uint64(_P2)
    found = (found << np.uint64(31)) | (found >> np.uint64(33))
    found *= np.uint64(_P1)
    return found


def _joined(stirred: Words, seeds: Words) -> Words:
    """The second half; in place where that saves memory."""
    found = seeds + np.uint64((_P5 + 8) & _ALL)
    found ^= stirred
    found = (found << np.uint64(27)) | (found >> np.uint64(37))
    found *= np.uint64(_P1)
    found += np.uint64(_P4)
    found ^= found >> np.uint64(33)
    found *= np.uint64(_P2)
    found ^= found >> np.uint64(29)
    found *= np.uint64(_P3)
    found ^= found >> np.uint64(32)
    return found


def _rotated(words: Words, by: int) -> Words:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))


def _xxh64(texts: npt.NDArray[np.uint8]) -> Words:
    """Of rows of equally many bytes."""
    many, size = texts.shape
    p1, p2, p3, p4, p5 = map(np.uint64, (_P1, _P2, _P3, _P4, _P5))
    whole = size // 8 * 8
    words = np.ascontiguousarray(texts[:, :whole]).view("<u8") if whole else np.empty((many, 0), np.uint64)
    place = 0
    if size >= 32:
        begin = [(SEED + _P1 + _P2) & _ALL, (SEED + _P2) & _ALL, SEED, (SEED - _P1) & _ALL]
        lanes = [np.full(many, lane, np.uint64) for lane in begin]
        for place in range(0, size // 32 * 4, 4):
            lanes = [_rotated(lane + words[:, place + at] * p2, 31) * p1 for at, lane in enumerate(lanes)]
        place = size // 32 * 4
        found = sum(
            (_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.uint64(0)
        )
        for lane in lanes:
            found = (found ^ (_rotated(lane * p2, 31) * p1)) * p1 + p4
    else:
        found = np.full(many, (SEED + _P5) & _ALL, np.uint64)
    found = found + np.uint64(size)
    for at in range(place, size // 8):
        found = _rotated(found ^ (_rotated(words[:, at] * p2, 31) * p1), 27) * p1 + p4
    at = whole
    if size - at >= 4:
        half = np.ascontiguousarray(texts[:, at : at + 4]).view("<u4")[:, 0].astype(np.uint64)
        found = _rotated(found ^ (half * p1), 23) * p2 + p3
        at += 4
    for last in range(at, size):
        found = _rotated(found ^ (texts[:, last].astype(np.uint64) * p5), 11) * p1
    found = (found ^ (found >> np.uint64(33))) * p2
    found = (found ^ (found >> np.uint64(29))) * p3
    return np.asarray(found ^ (found >> np.uint64(32)))
