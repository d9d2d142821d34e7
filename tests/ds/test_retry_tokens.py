"""What a caller over QUIC shows to prove its address."""

from __future__ import annotations

import itertools

import pytest

from blindpost.ds.retry_tokens import TOKEN_S, RetryTokens

HERE = ("127.0.0.1", 1000)


class Clock:
    now = 50.0


@pytest.fixture
def tokens() -> RetryTokens:
    Clock.now = 50.0
    return RetryTokens(lambda: Clock.now)


@pytest.mark.parametrize("sizes", [*itertools.product((0, 8, 20), repeat=2)])
def test_what_was_written_comes_back(tokens: RetryTokens, sizes: tuple[int, int]) -> None:
    original, chosen = (bytes(range(size)) for size in sizes)
    token = tokens.create_token(HERE, original, chosen)
    assert tokens.validate_token(HERE, token) == (original, chosen)
    assert token != tokens.create_token(HERE, original, chosen)


@pytest.mark.parametrize("there", [("127.0.0.1", 1001), ("127.0.0.2", 1000), ("127.0.0.11", 0)])
def test_a_token_is_for_one_address(tokens: RetryTokens, there: tuple[str, int]) -> None:
    token = tokens.create_token(HERE, b"original", b"chosen")
    with pytest.raises(ValueError, match="not written here for this caller"):
        tokens.validate_token(there, token)


def test_a_token_of_another_process_is_refused(tokens: RetryTokens) -> None:
    with pytest.raises(ValueError, match="not written here"):
        tokens.validate_token(HERE, RetryTokens().create_token(HERE, b"original", b"chosen"))


def test_a_token_is_good_for_a_short_time(tokens: RetryTokens) -> None:
    token = tokens.create_token(HERE, b"original", b"chosen")
    Clock.now += TOKEN_S
    assert tokens.validate_token(HERE, token) == (b"original", b"chosen")
    Clock.now += 0.1
    with pytest.raises(ValueError, match="too old"):
        tokens.validate_token(HERE, token)


def test_no_other_bytes_are_a_token(tokens: RetryTokens) -> None:
    token = tokens.create_token(HERE, b"original", b"chosen")
    for size in range(len(token)):
        with pytest.raises(ValueError):  # noqa: PT011 - what it says depends on the size
            tokens.validate_token(HERE, token[:size])
    for place in range(len(token)):
        changed = bytearray(token)
        changed[place] ^= 1
        with pytest.raises(ValueError, match="not written here"):
            tokens.validate_token(HERE, bytes(changed))
