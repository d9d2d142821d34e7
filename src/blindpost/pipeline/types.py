"""The journal's columns in the words of Spark and of Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from blindpost.journal.schema import Table, Type

_SPARK: dict[Type, spark.DataType] = {
    Type.STRING: spark.StringType(),
    Type.BOOL: spark.BooleanType(),
    Type.INT32: spark.IntegerType(),
    Type.INT64: spark.LongType(),
    Type.FLOAT64: spark.DoubleType(),
    Type.BINARY: spark.BinaryType(),
    Type.INT64_LIST: spark.ArrayType(spark.LongType()),
    Type.FLOAT64_LIST: spark.ArrayType(spark.DoubleType()),
}
_ARROW: dict[Type, pa.DataType] = {
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.BINARY: pa.binary(),
    Type.INT64_LIST: pa.list_(pa.int64()),
    Type.FLOAT64_LIST: pa.list_(pa.float64()),
}


def spark_schema(table: Table) -> spark.StructType:
    """All columns of the newest version; a file of an earlier one has null in those it lacks."""
    return spark.StructType(
        [spark.StructField(column.name, _SPARK[column.type], True) for column in table.columns]
    )


def silver_schema(table: Table) -> spark.StructType:
    return spark.StructType([*spark_schema(table).fields, spark.StructField("day", spark.DateType(), True)])


def arrow_schema(table: Table) -> pa.Schema:
    return pa.schema([(column.name, _ARROW[column.type]) for column in table.columns])


def is_a(found: pa.DataType, wanted: Type) -> bool:
    """Whether a column of a file has this type; names of inner fields do not matter."""
    expected = _ARROW[wanted]
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return bool(found.value_type == expected.value_type)
    return bool(found == expected)


def columns(*described: tuple[str, spark.DataType, str], nullable: tuple[str, ...] = ()) -> spark.StructType:
    """A schema with a sentence about each column; those not named as nullable never are."""
    return spark.StructType(
        [
            spark.StructField(name, kind, name in nullable, {"comment": comment})
            for name, kind, comment in described
        ]
    )
