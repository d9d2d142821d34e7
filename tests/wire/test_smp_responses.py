"""SMP responses and events against the reference's own encodings, at every version."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import RefusedError
from blindpost.wire.smp.responses import ENDS, RESPONSES, SOKS, Response, read_response
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.smp_values import error_of_text, response_of
from tests.support.wire.vectors import named, vectors

VECTORS = vectors("smp_responses.json")
ENCODINGS = [vector for vector in VECTORS if "value" in vector]
PARSES = [vector for vector in VECTORS if "result" in vector]
HASH = bytes.fromhex("3c63ed673327d6ebd6297beffa737b60")


def decoded(data: bytes, version: int) -> Response:
    return read_response(Reader(data), version)


def encoded(response: Response, version: int) -> bytes:
    writer = Writer()
    response.write(writer, version)
    assert writer.size == len(writer.done())
    return writer.done()


def test_every_vector_is_an_encoding_or_a_parse() -> None:
    assert len(ENCODINGS) + len(PARSES) == len(VECTORS)


def test_every_response_has_a_vector() -> None:
    assert {vector["value"]["tag"].encode() for vector in ENCODINGS} == set(RESPONSES)


@pytest.mark.parametrize("vector", ENCODINGS, ids=named)
def test_encoding(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    value = response_of(vector["value"])
    given = response_of(vector.get("encoded_from", vector["value"]))
    for version in vector["versions"]:
        assert decoded(data, version) == value
        assert encoded(given, version) == data
        assert encoded(value, version) == data


@pytest.mark.parametrize("vector", PARSES, ids=named)
def test_parse(vector: dict[str, Any]) -> None:
    data, result = bytes.fromhex(vector["bytes"]), vector["result"]
    for version in vector["versions"]:
        if "tag" in result:
            assert decoded(data, version) == response_of(result)
        else:
            with pytest.raises(RefusedError) as refused:
                decoded(data, version)
            assert refused.value.error == error_of_text(result["error"])


@pytest.mark.parametrize("vector", VECTORS, ids=named)
def test_hostile_bytes_give_a_response_or_the_one_error(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    for version in {vector["versions"][0], vector["versions"][-1]}:
        truncated_everywhere(partial(decoded, version=version), data)
        changed_everywhere(partial(decoded, version=version), data, vector["name"])


@pytest.mark.claim("SVC-02")
@pytest.mark.parametrize("response", [SOKS, ENDS])
def test_service_counts_carry_16_bytes_of_hash(response: type[SOKS | ENDS]) -> None:
    """We read a hash of any length because peers do, but never write one."""
    golden = {
        SOKS: "534f4b53200000000000000002103c63ed673327d6ebd6297beffa737b60",
        ENDS: "454e4453200000000000000002103c63ed673327d6ebd6297beffa737b60",
    }
    assert encoded(response(2, HASH), 19).hex() == golden[response]
    assert decoded(bytes.fromhex(golden[response]), 19) == response(2, HASH)
    for size in (0, 15, 17):
        with pytest.raises(WireError):
            encoded(response(2, bytes(size)), 19)


@pytest.mark.claim("SVC-03")
@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize("response", [SOKS, ENDS])
def test_service_counts_without_hash(response: type[SOKS | ENDS], version: int) -> None:
    data = response.TAG + b" " + (2).to_bytes(8, "big")
    assert encoded(response(2, HASH), version) == data
    assert decoded(data, version) == response(2, bytes(16))
    with pytest.raises(RefusedError):
        decoded(data, 19)
