"""Two people agree on post-quantum keys and write to each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from blindpost.demo.figures import Row, Say, quantile_ms
from blindpost.demo.people import Person, introduce

LETTERS = 60


async def exchange(one: Person, other: Person, count: int, word: str) -> None:
    """Both write this many letters, and wait until they are read."""
    ends = [(somebody, letters(somebody, word) + count) for somebody in (one, other)]

    async def write(writer: Person) -> None:
        for number in range(count):
            await writer.write(f"{word} {number} of {writer.name}")

    await asyncio.gather(write(one), write(other))
    for somebody, end in ends:
        await somebody.until(_has_read(word, end))


def letters(reader: Person, word: str) -> int:
    """How many of these letters somebody has read."""
    return sum(letter.startswith(word) for letter in reader.read)


def _has_read(word: str, count: int) -> Callable[[Person], bool]:
    return lambda reader: letters(reader, word) >= count


async def play(alice: Person, bob: Person, say: Say) -> list[Row]:
    started = time.monotonic()
    await introduce(alice, bob)
    connected_s = time.monotonic() - started
    assert alice.peer is not None
    assert bob.peer is not None
    same = alice.peer.security_code == bob.peer.security_code
    say(f"Alice and Bob are connected after {connected_s:.1f} s: X3DH over X448 and sntrup761")
    started = time.monotonic()
    await exchange(alice, bob, LETTERS, "letter")
    taken = time.monotonic() - started
    say(f"{2 * LETTERS} letters went both ways, each encrypted anew, {2 * LETTERS / taken:.0f} a second")
    latencies = alice.latencies_s + bob.latencies_s
    good = alice.broken == bob.broken == 0 and _in_order(alice, bob) and _in_order(bob, alice)
    return [
        Row("security code equal on both sides", "yes" if same else "no", same),
        Row("post-quantum in both directions", "yes" if alice.pq and bob.pq else "no", alice.pq and bob.pq),
        Row("letters, each once and in order", f"{2 * LETTERS}", good),
        Row("letter stored to accepted by the router", f"median {quantile_ms(latencies, 0.5):.0f} ms"),
    ]


def _in_order(reader: Person, writer: Person) -> bool:
    return reader.read == [f"letter {number} of {writer.name}" for number in range(LETTERS)]
