"""Encrypted blocks: both directions, lost and broken blocks, and how much is copied."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.block_chain import SEALED_PAYLOAD_MAX, BlockChains, client_chains, router_chains
from blindpost.crypto.errors import CryptoError
from blindpost.wire.errors import WireError
from tests.support.wire.long_values import ramp

SESSION_ID = ramp(0, 32)
SECRET = ramp(32, 32)


def both_ends() -> tuple[BlockChains, BlockChains]:
    return router_chains(SESSION_ID, SECRET), client_chains(SESSION_ID, SECRET)


@given(
    session_id=st.binary(max_size=48),
    secret=st.binary(min_size=32, max_size=32),
    payloads=st.lists(st.lists(st.binary(max_size=300), max_size=4), max_size=4),
)
@settings(deadline=None, max_examples=40)
def test_both_ends_read_each_others_blocks(
    session_id: bytes, secret: bytes, payloads: list[list[bytes]]
) -> None:
    router, client = router_chains(session_id, secret), client_chains(session_id, secret)
    for parts in payloads:
        payload = b"".join(parts)
        for sender, receiver in ((router, client), (client, router)):
            block = sender.sending.seal_block([memoryview(part) for part in parts], len(payload))
            assert len(block) == 16384
            assert receiver.receiving.open_block(block) == payload


def test_no_two_blocks_are_alike() -> None:
    router, client = both_ends()
    blocks = [bytes(end.sending.seal_block([b"hello"], 5)) for end in (router, client) for _ in range(3)]
    assert len(set(blocks)) == 6


def test_the_largest_payload_and_one_byte_more() -> None:
    router, client = both_ends()
    assert SEALED_PAYLOAD_MAX == 16366
    largest = bytes(SEALED_PAYLOAD_MAX)
    assert client.receiving.open_block(router.sending.seal_block([largest], len(largest))) == largest
    with pytest.raises(WireError, match="16367 bytes do not fit into 16368"):
        router.sending.seal_block([largest, b"x"], len(largest) + 1)


def test_a_corrupt_block_loses_only_itself() -> None:
    router, client = both_ends()
    broken = bytearray(router.sending.seal_block([b"first"], 5))
    broken[9000] ^= 1
    with pytest.raises(CryptoError, match="does not open"):
        client.receiving.open_block(memoryview(broken))
    assert bytes(client.receiving.open_block(router.sending.seal_block([b"second"], 6))) == b"second"


def test_a_block_of_the_wrong_size_loses_only_itself() -> None:
    router, client = both_ends()
    block = router.sending.seal_block([b"first"], 5)
    with pytest.raises(CryptoError, match="16384 bytes expected, not 16383"):
        client.receiving.open_block(block[:-1])
    assert bytes(client.receiving.open_block(router.sending.seal_block([b"second"], 6))) == b"second"


def test_no_block_opens_after_a_lost_one() -> None:
    router, client = both_ends()
    router.sending.seal_block([b"lost"], 4)
    with pytest.raises(CryptoError, match="does not open"):
        client.receiving.open_block(router.sending.seal_block([b"next"], 4))


def test_a_repeated_block_does_not_open_again() -> None:
    router, client = both_ends()
    block = router.sending.seal_block([b"hello"], 5)
    assert bytes(client.receiving.open_block(block)) == b"hello"
    with pytest.raises(CryptoError, match="does not open"):
        client.receiving.open_block(block)


def test_a_block_does_not_open_in_the_other_direction() -> None:
    router, _ = both_ends()
    block = router.sending.seal_block([b"hello"], 5)
    with pytest.raises(CryptoError, match="does not open"):
        router.receiving.open_block(block)


def test_a_block_is_assembled_and_opened_with_one_buffer_each() -> None:
    router, client = both_ends()
    body: list[bytes | memoryview] = [bytes(16000)]
    router.sending.seal_block(body, 16000)
    tracemalloc.start()
    try:
        block = router.sending.seal_block(body, 16000)
        assert tracemalloc.get_traced_memory()[1] < 16384 + 4096
    finally:
        tracemalloc.stop()
    client.receiving.open_block(router_chains(SESSION_ID, SECRET).sending.seal_block(body, 16000))
    tracemalloc.start()
    try:
        payload = client.receiving.open_block(block)
        assert tracemalloc.get_traced_memory()[1] < 16384 + 4096
    finally:
        tracemalloc.stop()
    assert payload == body[0]


def test_chains_print_no_secrets() -> None:
    shown = repr(router_chains(SESSION_ID, SECRET))
    assert shown == "BlockChains(sending=BlockChain(32 secret bytes), receiving=BlockChain(32 secret bytes))"
