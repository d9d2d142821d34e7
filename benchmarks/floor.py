"""The floor: what one message costs in calls of C that no implementation here can avoid.

One message at version 19 is SEND, its OK, MSG, ACK and its OK: five blocks, of which a router opens two and
seals three. Each item below is one bare call into a library on prepared buffers, so that what
remains above the floor is ours: interpreter, copies, kernel, storage.

    python -m benchmarks.floor [--rounds N] [--json]

Method: CPU time of this process, not wall-clock time. Every round measures every item once, so that a
change in the machine's mood meets all of them; an item runs long enough to dwarf the clock's resolution;
the cost of the empty loop is measured beside it and taken off. What is left includes about half a
microsecond a call for crossing into C. Verification goes through a hundred keys in turn: its branches depend
on key and signature, a processor learns those of a single pair by heart, and then takes 4 to 5 % less time
than it takes for what it has not seen, which is all that a router ever gets. Reported are medians and
quartiles over the rounds; the floor is the median of the rounds' sums.

The floor is a unit: aims were set in it when libsodium verified, and it stays what it was. The router has
found a faster library since, so a second sum is given, the least: the same calls with that verification.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cffi import FFI
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from benchmarks.figures.rows import Better, Figure, as_json
from blindpost.crypto import ed25519, sodium
from blindpost.crypto.sodium_abi import ffi

BLOCK_SIZE = 16384
PADDED_BLOCK_SIZE = BLOCK_SIZE - sodium.TAG_SIZE
PADDED_MESSAGE_SIZE = 16106
SEND_AUTHORIZED_SIZE = 33 + 25 + 25 + len("SEND T ") + 16048
ACK_AUTHORIZED_SIZE = 33 + 25 + 25 + len("ACK ") + 25
HKDF_COMPRESSIONS = 8
"""SHA-512 blocks of one chain step: two to extract (key prepared), two for the new key, four to expand."""

SIGNERS = 100
SAMPLE_NS = 2_000_000
WARM_UP_CALLS = 20

Call = Callable[[], object]


@dataclass(frozen=True)
class Item:
    """One unavoidable call and how often a message cycle makes it."""

    name: str
    times: int
    call: Call
    least_times: int | None = None
    """How often in the least floor; the same, if nothing is said."""

    @property
    def times_at_least(self) -> int:
        return self.times if self.least_times is None else self.least_times


@dataclass(frozen=True)
class Measured:
    """Microseconds of CPU: median and quartiles."""

    name: str
    times: int
    median_us: float
    lower_us: float
    upper_us: float


@dataclass(frozen=True)
class Floor:
    """The result: the floor of one message cycle, its items, and where it was measured."""

    total: Measured
    least: Measured
    items: tuple[Measured, ...]
    rounds: int
    machine: dict[str, str]


def tls_items() -> list[Item]:
    """A record of TLS 1.3 carries one block and one byte for its type; its header is authenticated too."""
    cipher, nonce, header = ChaCha20Poly1305(bytes(32)), bytes(12), bytes(5)
    content = bytes(BLOCK_SIZE + 1)
    record, opened = bytearray(len(content) + 16), bytearray(len(content))
    sealed = cipher.encrypt(nonce, content, header)
    assert cipher.decrypt_into(nonce, sealed, header, opened) == len(content)
    return [
        Item("TLS record opened", 2, lambda: cipher.decrypt_into(nonce, sealed, header, opened)),
        Item("TLS record sealed", 3, lambda: cipher.encrypt_into(nonce, content, header, record)),
    ]


def box_items() -> list[Item]:
    """The key step of a block, its box, and the box of the message itself."""
    (hsalsa20,) = sodium.load(sodium.bundled_path(), ("crypto_core_hsalsa20",))
    seal, unseal = sodium.secretbox, sodium.secretbox_open
    key, nonce, zeros, null = bytes(32), bytes(24), bytes(16), ffi.NULL
    subkey = ffi.from_buffer(bytearray(32))
    box = ffi.from_buffer("unsigned char[]", bytearray(BLOCK_SIZE))
    opened = ffi.from_buffer("unsigned char[]", bytearray(PADDED_BLOCK_SIZE))
    working = ffi.from_buffer("unsigned char[]", bytearray(BLOCK_SIZE))
    text = working + sodium.TAG_SIZE
    assert seal(box, box + sodium.TAG_SIZE, PADDED_BLOCK_SIZE, nonce, key) == 0
    assert unseal(opened, box, BLOCK_SIZE, nonce, key) == 0
    hashed = bytes(HKDF_COMPRESSIONS * 128 - 17)
    return [
        Item("block key: HKDF-SHA512", 5, lambda: hashlib.sha512(hashed).digest()),
        Item("block key: HSalsa20", 5, lambda: hsalsa20(subkey, zeros, key, null)),
        Item("block box opened", 2, lambda: unseal(opened, box, BLOCK_SIZE, nonce, key)),
        Item(
            "block box sealed",
            3,
            lambda: seal(working, text, PADDED_BLOCK_SIZE, nonce, key),
        ),
        Item(
            "message box sealed",
            1,
            lambda: seal(working, text, PADDED_MESSAGE_SIZE, nonce, key),
        ),
    ]


def signature_items() -> list[Item]:
    """Ed25519 verification of the two commands: as the floor counts it, and as the router does it."""
    return [
        Item("Ed25519 verified, SEND", 1, by_libsodium(SEND_AUTHORIZED_SIZE), least_times=0),
        Item("Ed25519 verified, ACK", 1, by_libsodium(ACK_AUTHORIZED_SIZE), least_times=0),
        Item("Ed25519 faster, SEND", 0, by_the_router(SEND_AUTHORIZED_SIZE), least_times=1),
        Item("Ed25519 faster, ACK", 0, by_the_router(ACK_AUTHORIZED_SIZE), least_times=1),
    ]


def by_libsodium(size: int) -> Call:
    """Verify the signature of so many bytes."""
    verify, content = _libsodium_verify(), bytes(size)
    signed = [(sodium.ed25519_sign(signer, content), content, size, signer[32:]) for signer in _signers()]
    assert not any(verify(*arguments) for arguments in signed)
    return _in_turn(verify, signed)


def by_the_router(size: int) -> Call:
    """The same by the library that the router uses; it raises if a signature is not valid."""
    content, prefix, scheme = bytes(size), ed25519.KEY_PREFIX, ed25519.SCHEME
    signed = [
        (prefix + signer[32:], scheme, content, sodium.ed25519_sign(signer, content)) for signer in _signers()
    ]
    return _in_turn(ed25519.check, signed)


def _in_turn(verify: Callable[..., object], signed: Sequence[tuple[object, ...]]) -> Call:
    following = itertools.cycle(signed).__next__

    def call() -> None:
        verify(*following())

    return call


@functools.cache
def _libsodium_verify() -> Any:
    declared = FFI()
    declared.cdef(
        "int crypto_sign_verify_detached(const unsigned char *sig, const unsigned char *m,"
        " unsigned long long mlen, const unsigned char *pk);"
    )
    library: Any = declared.dlopen(sodium.bundled_path())
    return library.crypto_sign_verify_detached


@functools.cache
def _signers() -> list[bytes]:
    return [sodium.ed25519_expand(hashlib.sha256(bytes((number,))).digest()) for number in range(SIGNERS)]


def nothing() -> None:
    """The empty call, for the cost of the loop."""


def cpu_ns(call: Call, repeats: int) -> int:
    """CPU time of `repeats` calls."""
    counter = itertools.repeat(None, repeats)
    before = time.process_time_ns()
    for _ in counter:
        call()
    return time.process_time_ns() - before


def repeats_for(call: Call) -> int:
    """How many calls fill one sample."""
    cpu_ns(call, WARM_UP_CALLS)
    once = max(cpu_ns(call, WARM_UP_CALLS) / WARM_UP_CALLS, 50)
    return max(int(SAMPLE_NS / once), 10)


def measure(rounds: int = 25) -> Floor:
    """Measure all items `rounds` times, in turn."""
    items = [*tls_items(), *box_items(), *signature_items()]
    repeats = [repeats_for(item.call) for item in items]
    idle_repeats = repeats_for(nothing)
    samples: list[list[float]] = [[] for _ in items]
    totals: list[float] = []
    leasts: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            idle_ns = cpu_ns(nothing, idle_repeats) / idle_repeats
            total = least = 0.0
            for item, count, sample in zip(items, repeats, samples, strict=True):
                each_us = max(cpu_ns(item.call, count) / count - idle_ns, 0.0) / 1000
                sample.append(each_us)
                total += item.times * each_us
                least += item.times_at_least * each_us
            totals.append(total)
            leasts.append(least)
    finally:
        if collecting:
            gc.enable()
    measured = tuple(
        summary(item.name, item.times, sample) for item, sample in zip(items, samples, strict=True)
    )
    floors = summary("the floor", 1, totals), summary("the least floor", 1, leasts)
    return Floor(*floors, measured, rounds, machine())


def summary(name: str, times: int, sample: list[float]) -> Measured:
    lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
    return Measured(name, times, median, lower, upper)


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    one_minute, five_minutes, _ = os.getloadavg()
    return {
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "load": f"{one_minute:.1f} (1 min), {five_minutes:.1f} (5 min)",
        "python": platform.python_version(),
        "openssl": backend.openssl_version_text(),
        "libsodium": f"inside PyNaCl {version('pynacl')}",
        "cffi": version("cffi"),
        "qh3": version("qh3"),
    }


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def shown(floor: Floor) -> str:
    lines = [f"{what}: {value}" for what, value in floor.machine.items()]
    lines += ["", f"{'item':<26}{'times':>6}{'each, us':>10}{'quartiles':>18}{'together':>10}"]
    for item in floor.items:
        spread = f"{item.lower_us:.2f} .. {item.upper_us:.2f}"
        together = item.times * item.median_us
        lines.append(f"{item.name:<26}{item.times:>6}{item.median_us:>10.2f}{spread:>18}{together:>10.1f}")
    total, least = floor.total, floor.least
    lines += [
        "",
        f"the floor of one message cycle: {total.median_us:.0f} us of CPU "
        f"(quartiles {total.lower_us:.0f} .. {total.upper_us:.0f}, {floor.rounds} rounds)",
        f"the least, with the faster verification: {least.median_us:.0f} us "
        f"(quartiles {least.lower_us:.0f} .. {least.upper_us:.0f})",
    ]
    return "\n".join(lines)


def figures(floor: Floor) -> list[Figure]:
    """The two floors and their items: what others are measured by."""
    sums = (("the floor", floor.total), ("the least floor", floor.least))
    rows = [*sums, *((f"item: {item.name}", item) for item in floor.items)]
    return [
        Figure(name, "us of CPU", one.median_us, one.lower_us, one.upper_us, Better.NEITHER)
        for name, one in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the floor of one message cycle.")
    parser.add_argument("--rounds", type=int, default=25, help="how often each item is measured (default 25)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("quartiles need at least two rounds")
    floor = measure(arguments.rounds)
    print(as_json(figures(floor)) if arguments.json else shown(floor))


if __name__ == "__main__":
    main()
