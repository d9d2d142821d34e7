"""sntrup761 against the reference's numbers and against plain arithmetic; the pool of pairs made ahead."""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blindpost.crypto.kem import (
    SECRET_KEY_SIZE,
    Encapsulated,
    KemKeyPair,
    KemLibrary,
    decapsulate,
    encapsulate,
    generate_key_pair,
)
from blindpost.crypto.kem_pool import PAIR_SIZE, KemKeyPool, KemWorker
from blindpost.wire.e2e import KEM_CIPHERTEXT_SIZE, KEM_PUBLIC_KEY_SIZE
from blindpost.wire.errors import WireError
from tests.support.crypto import sntrup761
from tests.support.wire.vectors import named, vectors

REJECTED = "ss (implicit rejection)"
PAIRS = [entry for entry in vectors("sntrup761.json") if "encapsulations" in entry]
ZEROS = [
    entry for entry in vectors("sntrup761.json") if entry["name"].endswith("ciphertext of 1039 zero bytes")
]
DETERMINISTIC = vectors("sntrup761.json", "deterministic")


def pair_of(entry: dict[str, Any]) -> KemKeyPair:
    return KemKeyPair(bytes.fromhex(entry["pk"]), bytes.fromhex(entry["sk"]))


def test_every_vector_is_of_a_kind_that_is_tested() -> None:
    assert len(PAIRS) + len(ZEROS) + len(DETERMINISTIC) == len(vectors("sntrup761.json"))


@pytest.mark.parametrize("entry", PAIRS, ids=named)
def test_recorded_encapsulations_and_rejections(entry: dict[str, Any]) -> None:
    pair = pair_of(entry)
    check_pair(pair)
    for made in entry["encapsulations"]:
        ciphertext, secret = bytes.fromhex(made["ct"]), bytes.fromhex(made["ss"])
        assert decapsulate(pair, ciphertext) == secret
        check_encapsulation(pair, ciphertext, secret)
    for made in entry["rejections"]:
        ciphertext = bytes.fromhex(made["ct"])
        assert decapsulate(pair, ciphertext).hex() == made[REJECTED]
        assert own_secret(pair, ciphertext).hex() == made[REJECTED]


@pytest.mark.parametrize("entry", ZEROS, ids=named)
def test_recorded_rejection_of_zeros(entry: dict[str, Any]) -> None:
    (owner,) = [pair for pair in PAIRS if pair["name"] == entry["name"].partition(",")[0]]
    assert decapsulate(pair_of(owner), bytes(KEM_CIPHERTEXT_SIZE)).hex() == entry[REJECTED]


@pytest.mark.parametrize("entry", DETERMINISTIC, ids=named)
def test_recorded_values_follow_from_the_stated_randomness(entry: dict[str, Any]) -> None:
    """The library draws its own randomness; so the recorded keys are checked against plain arithmetic."""
    stream = hashlib.shake_256(entry["label"].encode()).digest(entry["keygen_bytes"] + entry["enc_bytes"])
    assert stream[:64].hex() == entry["stream_prefix"]
    small = sntrup761.small_of(sntrup761.random_words(stream))
    short = sntrup761.short_of(sntrup761.random_words(stream[3044:]))
    pair = pair_of(entry)
    secret_key = pair.secret_key
    assert secret_key[:191] == sntrup761.encode_small(short)
    assert secret_key[1540:1731] == stream[6088:6279]
    inverse = sntrup761.decode_small(secret_key[191:382])
    assert sntrup761.multiply(small, inverse, 3) == [1] + [0] * 760
    public = sntrup761.decode_public_key(pair.public_key)
    assert sntrup761.multiply(public, [3 * c for c in short], sntrup761.Q) == small
    check_pair(pair)
    ciphertext, secret = bytes.fromhex(entry["ct"]), bytes.fromhex(entry["ss"])
    used = sntrup761.short_of(sntrup761.random_words(stream[6279:]))
    assert sntrup761.decode_rounded(ciphertext[: sntrup761.ROUNDED_SIZE]) == sntrup761.rounded(
        sntrup761.multiply(public, used, sntrup761.Q)
    )
    assert check_encapsulation(pair, ciphertext, secret) == sntrup761.encode_small(used)
    assert decapsulate(pair, ciphertext) == secret
    flipped = bytes([ciphertext[0] ^ 1]) + ciphertext[1:]
    assert decapsulate(pair, flipped).hex() == entry["ss for ct with bit 0 of byte 0 flipped"]


def check_pair(pair: KemKeyPair) -> None:
    """A secret key holds f and 1/g, the public key, rho and the hash of the public key; h is g / 3f."""
    secret_key = pair.secret_key
    assert secret_key[382:1540] == pair.public_key
    assert secret_key[1731:] == sntrup761.hashed(4, pair.public_key)
    short = sntrup761.decode_small(secret_key[:191])
    assert sum(c != 0 for c in short) == sntrup761.W
    public = sntrup761.decode_public_key(pair.public_key)
    small = sntrup761.multiply(public, [3 * c for c in short], sntrup761.Q)
    assert set(small) == {-1, 0, 1}
    inverse = sntrup761.decode_small(secret_key[191:382])
    assert sntrup761.multiply(small, inverse, 3) == [1] + [0] * 760


def check_encapsulation(pair: KemKeyPair, ciphertext: bytes, secret: bytes) -> bytes:
    """Open the ciphertext by hand; what it hides decides the confirmation and the secret."""
    short = sntrup761.decode_small(pair.secret_key[:191])
    inverse = sntrup761.decode_small(pair.secret_key[191:382])
    body = sntrup761.decode_rounded(ciphertext[: sntrup761.ROUNDED_SIZE])
    masked = sntrup761.multiply(body, [3 * c for c in short], sntrup761.Q)
    hidden = sntrup761.multiply([sntrup761.centred(c, 3) for c in masked], inverse, 3)
    encoded = sntrup761.encode_small(hidden)
    inner = sntrup761.hashed(3, encoded)
    assert ciphertext[sntrup761.ROUNDED_SIZE :] == sntrup761.hashed(2, inner + pair.secret_key[1731:])
    assert secret == sntrup761.hashed(1, inner + ciphertext)
    return encoded


def own_secret(pair: KemKeyPair, ciphertext: bytes) -> bytes:
    """What a ciphertext that was not made for the pair decapsulates to."""
    return sntrup761.hashed(0, sntrup761.hashed(3, pair.secret_key[1540:1731]) + ciphertext)


def test_fresh_pairs_and_ciphertexts() -> None:
    library = KemLibrary()
    pair, other = library.key_pair(), library.key_pair()
    assert pair.public_key != other.public_key
    check_pair(pair)
    first, second = library.encapsulate(pair.public_key), library.encapsulate(pair.public_key)
    assert first.ciphertext != second.ciphertext
    assert decapsulate(pair, first.ciphertext) == first.secret
    check_encapsulation(pair, first.ciphertext, first.secret)
    assert decapsulate(other, first.ciphertext) == own_secret(other, first.ciphertext)


def test_wrong_sizes_are_refused() -> None:
    pair = pair_of(PAIRS[0])
    for size in (0, 1, KEM_PUBLIC_KEY_SIZE - 1, KEM_PUBLIC_KEY_SIZE + 1):
        with pytest.raises(WireError):
            encapsulate(bytes(size))
        with pytest.raises(WireError):
            KemKeyPair(bytes(size), pair.secret_key)
    for size in (0, 1, KEM_CIPHERTEXT_SIZE - 1, KEM_CIPHERTEXT_SIZE + 1):
        with pytest.raises(WireError):
            decapsulate(pair, bytes(size))
        with pytest.raises(WireError):
            Encapsulated(bytes(size), bytes(32))
    for size in (0, SECRET_KEY_SIZE - 1, SECRET_KEY_SIZE + 1):
        with pytest.raises(WireError):
            KemKeyPair(pair.public_key, bytes(size))
    with pytest.raises(WireError):
        Encapsulated(bytes(KEM_CIPHERTEXT_SIZE), bytes(31))


def test_pairs_print_as_fingerprints() -> None:
    pair = pair_of(PAIRS[0])
    fingerprint = hashlib.sha256(pair.public_key).hexdigest()[:12]
    assert repr(pair) == f"sntrup761({fingerprint})"
    made = Encapsulated(bytes(KEM_CIPHERTEXT_SIZE), bytes(32))
    assert repr(made) == "Encapsulated(ciphertext=<1039 bytes>, secret=<32 bytes>)"


def children(parent: int | None = None) -> set[int]:
    """Processes that we, or another parent, started and that are there, also as zombies."""
    found = set()
    parent = os.getpid() if parent is None else parent
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[1]) == parent:
            found.add(int(status.parent.name))
    return found


async def test_pool_makes_distinct_pairs_in_one_process_that_ends_with_it() -> None:
    before = children()
    async with KemKeyPool(size=2) as pool:
        pairs = [await pool.take() for _ in range(5)]
        (worker,) = children() - before
        assert worker != os.getpid()
    assert children() == before
    assert len({pair.public_key for pair in pairs}) == 5
    check_pair(pairs[-1])


class Counted:
    """Gives recorded pairs out and counts them."""

    def __init__(self) -> None:
        self.made: list[KemKeyPair] = []
        self.closed = False

    async def make(self) -> KemKeyPair:
        self.made.append(pair_of(PAIRS[len(self.made) % len(PAIRS)]))
        return self.made[-1]

    async def close(self) -> None:
        self.closed = True


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_pool_is_bounded_and_refills() -> None:
    maker = Counted()
    async with KemKeyPool(size=2, maker=maker) as pool:
        await turns()
        assert len(maker.made) == 3, "two ready and one in hand"
        assert await pool.take() == maker.made[0]
        await turns()
        assert len(maker.made) == 4
        assert await pool.take() == maker.made[1]
    assert maker.closed


async def test_pool_survives_the_death_of_its_worker() -> None:
    before = children()
    async with KemKeyPool(size=1) as pool:
        await pool.take()
        (worker,) = children() - before
        os.kill(worker, 9)
        pairs = [await pool.take() for _ in range(4)]
        assert len({pair.public_key for pair in pairs}) == 4
        assert worker not in children()
    assert children() == before


async def test_pool_without_a_worker_makes_pairs_itself() -> None:
    async with KemKeyPool(size=1, maker=KemWorker(executable="/nonexistent/python")) as pool:
        check_pair(await pool.take())


async def test_pool_ends_at_once_while_pairs_are_wanted() -> None:
    before = children()
    pool = KemKeyPool(size=1)
    async with pool:
        waiting = [asyncio.create_task(pool.take()) for _ in range(50)]
        await waiting[0]
    assert children() == before
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[-1], RuntimeError)
    with pytest.raises(RuntimeError):
        await pool.take()


async def test_failure_of_the_maker_reaches_the_taker() -> None:
    class Broken(Counted):
        async def make(self) -> KemKeyPair:
            raise MemoryError

    async with KemKeyPool(maker=Broken()) as pool:
        with pytest.raises(RuntimeError) as raised:
            await pool.take()
    assert isinstance(raised.value.__cause__, MemoryError)


async def test_cancelled_taker_leaves_the_pool_usable() -> None:
    maker = Counted()
    async with KemKeyPool(size=1, maker=maker) as pool:
        taker = asyncio.create_task(pool.take())
        await asyncio.sleep(0)
        taker.cancel()
        await asyncio.wait([taker])
        assert taker.cancelled()
        assert await pool.take() in maker.made


async def test_source_has_one_pair_which_returns_if_not_used() -> None:
    maker = Counted()
    async with KemKeyPool(size=1, maker=maker) as pool:
        for _ in range(10):
            async with pool.source():
                await turns()
        assert len(maker.made) == 3, "sources that are not used cost nothing"
        async with pool.source() as source:
            pair = source.key_pair()
            assert pair == maker.made[0]
            made = source.encapsulate(pair.public_key)
            assert decapsulate(pair, made.ciphertext) == made.secret
            assert source.key_pair() not in maker.made, "a second one is made on the spot"
        assert await pool.take() == maker.made[1], "a used pair is gone"


def test_worker_answers_each_byte_with_a_pair_and_ends_with_its_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blindpost.crypto.kem_worker"],
        input=b"..",
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert len(done.stdout) == 2 * PAIR_SIZE
    first, second = done.stdout[:PAIR_SIZE], done.stdout[PAIR_SIZE:]
    assert first != second
    check_pair(KemKeyPair(first[:KEM_PUBLIC_KEY_SIZE], first[KEM_PUBLIC_KEY_SIZE:]))


def test_worker_ends_without_a_word_when_nobody_reads_its_answer() -> None:
    read_end, write_end = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-m", "blindpost.crypto.kem_worker"],
        stdin=subprocess.PIPE,
        stdout=write_end,
        stderr=subprocess.PIPE,
    )
    os.close(read_end)
    os.close(write_end)
    _, said = worker.communicate(b".", timeout=60)
    assert (worker.returncode, said) == (0, b"")


POOL_THAT_NEVER_ENDS = """
import asyncio
from blindpost.crypto.kem_pool import KemKeyPool

async def main():
    async with KemKeyPool() as pool:
        await pool.take()
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_worker_does_not_outlive_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", POOL_THAT_NEVER_ENDS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (worker,) = children(parent.pid)
        end = os.pidfd_open(worker)
        try:
            parent.kill()
            parent.wait()
            ended, _, _ = select.select([end], [], [], 60)
            assert ended
        finally:
            os.close(end)


def test_making_a_pair_needs_no_pool() -> None:
    check_pair(generate_key_pair())
