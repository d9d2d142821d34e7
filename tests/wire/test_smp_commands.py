"""SMP commands against the reference's own encodings, at every version."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.commands import COMMANDS, NSUBS, SUBS, Command, read_command
from blindpost.wire.smp.errors import RefusedError
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.smp_values import command_of, error_of_text
from tests.support.wire.vectors import named, vectors

VECTORS = vectors("smp_commands.json")
ENCODINGS = [vector for vector in VECTORS if "value" in vector]
PARSES = [vector for vector in VECTORS if "result" in vector]
HASH = bytes.fromhex("3c63ed673327d6ebd6297beffa737b60")


def decoded(data: bytes, version: int) -> Command:
    return read_command(Reader(data), version)


def encoded(command: Command, version: int) -> bytes:
    writer = Writer()
    command.write(writer, version)
    assert writer.size == len(writer.done())
    return writer.done()


def test_every_vector_is_an_encoding_or_a_parse() -> None:
    assert len(ENCODINGS) + len(PARSES) == len(VECTORS)


def test_every_command_has_a_vector() -> None:
    assert {vector["value"]["tag"].encode() for vector in ENCODINGS} == set(COMMANDS)


@pytest.mark.parametrize("vector", ENCODINGS, ids=named)
def test_encoding(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    value = command_of(vector["value"])
    given = command_of(vector.get("encoded_from", vector["value"]))
    for version in vector["versions"]:
        assert decoded(data, version) == value
        assert encoded(given, version) == data
        assert encoded(value, version) == data


@pytest.mark.parametrize("vector", PARSES, ids=named)
def test_parse(vector: dict[str, Any]) -> None:
    data, result = bytes.fromhex(vector["bytes"]), vector["result"]
    for version in vector["versions"]:
        if "error" in result:
            with pytest.raises(RefusedError) as refused:
                decoded(data, version)
            assert refused.value.error == error_of_text(result["error"])
        else:
            assert decoded(data, version) == command_of(result)


@pytest.mark.parametrize("vector", VECTORS, ids=named)
def test_hostile_bytes_give_a_command_or_the_one_error(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    for version in {vector["versions"][0], vector["versions"][-1]}:
        truncated_everywhere(partial(decoded, version=version), data)
        changed_everywhere(partial(decoded, version=version), data, vector["name"])


@pytest.mark.claim("SVC-04")
@pytest.mark.parametrize("count", [0, 1, 2**40, -1])
@pytest.mark.parametrize("version", [19, 20])
@pytest.mark.parametrize("command", [SUBS, NSUBS])
def test_count_and_hash_of_service_subscriptions(
    command: type[SUBS | NSUBS], version: int, count: int
) -> None:
    data = command.TAG + b" " + count.to_bytes(8, "big", signed=True) + b"\x10" + HASH
    assert encoded(command(count, HASH), version) == data
    assert decoded(data, version) == command(count, HASH)


@pytest.mark.claim("SVC-02")
@pytest.mark.parametrize("command", [SUBS, NSUBS])
def test_service_subscriptions_carry_16_bytes_of_hash(command: type[SUBS | NSUBS]) -> None:
    """We read a hash of any length because peers do, but never write one."""
    golden = {
        SUBS: "53554253200000000000000002103c63ed673327d6ebd6297beffa737b60",
        NSUBS: "4e53554253200000000000000002103c63ed673327d6ebd6297beffa737b60",
    }
    assert encoded(command(2, HASH), 19).hex() == golden[command]
    assert decoded(bytes.fromhex(golden[command]), 19) == command(2, HASH)
    for size in (0, 15, 17):
        with pytest.raises(WireError):
            encoded(command(2, bytes(size)), 19)
        read = decoded(command.TAG + b" " + bytes(8) + bytes((size,)) + bytes(size), 19)
        assert read == command(0, bytes(size))


@pytest.mark.claim("SVC-03")
@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize("command", [SUBS, NSUBS])
def test_service_subscriptions_without_parameters(command: type[SUBS | NSUBS], version: int) -> None:
    assert encoded(command(2, HASH), version) == command.TAG
    assert decoded(command.TAG, version) == command(-1, bytes(16))
    with pytest.raises(RefusedError):
        decoded(command.TAG + b" " + bytes(8) + b"\x10" + HASH, version)
