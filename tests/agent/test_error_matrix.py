"""What the reference reported for each of the recorded stimuli, our agent reports too."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import Event, Failed, MsgOk, MsgSkipped, ProtocolError, RatchetSync, Received
from blindpost.agent.messages.layers import seal_confirmation
from blindpost.crypto.entropy import system_entropy
from blindpost.wire.agent.envelopes import Confirmation, write_agent_envelope
from blindpost.wire.agent.messages import AMsg, Hello
from blindpost.wire.primitives import encode
from tests.support.agent.agents import connect, quick_config, two_parties
from tests.support.agent.forging import Forger
from tests.support.agent.replay import transcript
from tests.support.client.scripted_router import virtual

_LATER = {"RSOk": "ok", "RSAllowed": "allowed", "RSRequired": "required"}


def written(event: Event) -> str:
    """An event as the reference's driver would print it, without the connection."""
    match event:
        case Received(_, msg):
            integrity = "MsgOk"
            if isinstance(msg.integrity, MsgSkipped):
                first, last = msg.integrity.first, msg.integrity.last
                integrity = f"MsgError {{errorInfo = MsgSkipped {{fromMsgId = {first}, toMsgId = {last}}}}}"
            else:
                assert msg.integrity == MsgOk()
            return f"MSG {msg.id} {integrity}"
        case RatchetSync(_, state, error):
            name = next(name for name, value in _LATER.items() if value == state.value)
            detail = "Nothing"
            if error is not None:
                assert isinstance(error, ProtocolError)
                detail = f"(Just {error.detail})" if " " not in error.detail else f"(Just ({error.detail}))"
            return f"RSYNC {name} {detail}"
        case Failed(_, error):
            return f"ERR {error.word}"
    return event.name


def recorded(line: str) -> str:
    """The same for what the reference printed; bodies and error details are left out."""
    line = re.sub(r"^(EVENT |)(MSG |)\S+== ", r"\2", line)
    if line.startswith("MSG"):
        return re.sub(r"^(MSG \d+ (?:MsgOk|MsgError \{.*?\}\})).*", r"\1", line)
    found = re.fullmatch(r"ERR \(AGENT \{agentErr = (A_\w+)(?: \{cryptoErr = (\w+)\})?.*\}\)", line)
    if found is not None:
        return " ".join(part for part in ("ERR AGENT", *found.groups()) if part)
    return line


class Stimuli:
    """Everything the recorded peer sent, by its names."""

    def __init__(self, forger: Forger) -> None:
        self.forger = forger
        self.last = b""
        self.corrupt = b""
        self.states = [forger.ratchet]

    def of(self, name: str) -> bytes:
        words = re.sub(r"\W+", "_", name.split("(")[0].strip().lower())
        make: Callable[[], bytes] = getattr(self, f"_{words}" if words[0].isdigit() else words)
        made = make()
        self.states.append(self.forger.ratchet)
        return made

    def good(self) -> bytes:
        self.last = self.forger.good()
        return self.last

    def exact_duplicate_ciphertext(self) -> bytes:
        return self.last

    def same_ratchet_number_other_ciphertext(self) -> bytes:
        forger, now = self.forger, self.forger.ratchet
        forger.ratchet = self.states[-3]
        made = self.numbered()
        forger.ratchet = now
        return made

    def numbered(self) -> bytes:
        """A message that takes a number and a place in the chain."""
        return self.forger.enveloped(self.forger.encrypted(self.forger.plain(AMsg(b"other"))))

    def corrupt_body(self) -> bytes:
        encrypted = bytearray(self.forger.encrypted(self.forger.plain(AMsg(b"corrupt"))))
        self.corrupt = bytes(encrypted)
        encrypted[-1] ^= 1
        return self.forger.enveloped(bytes(encrypted))

    def the_uncorrupted_original_of_it(self) -> bytes:
        return self.forger.enveloped(self.corrupt)

    def earlier_by_1(self) -> bytes:
        forger, now = self.forger, self.forger.ratchet
        forger.ratchet = self.states[-3]
        made = self.numbered()
        forger.ratchet = now
        return made

    def random_ratchet_message(self) -> bytes:
        return self.forger.enveloped(b"\x7f" + system_entropy(15_000))

    def short_ratchet_message(self) -> bytes:
        return self.forger.enveloped(b"\0\x7cabc")

    def _512_skipped(self) -> bytes:
        self.forger.skip(512)
        return self.good()

    def _513_skipped(self) -> bytes:
        before = self.forger.ratchet
        self.forger.skip(513)
        made = self.numbered()
        self.forger.ratchet = before
        return made

    def hello_on_active_queue(self) -> bytes:
        return self.forger.enveloped(self.forger.encrypted(self.forger.plain(Hello())))

    def unknown_agent_message(self) -> bytes:
        plain = bytearray(self.forger.plain(AMsg(b"")))
        plain[-1] = ord("X")
        return self.forger.enveloped(self.forger.encrypted(bytes(plain)))

    def unknown_envelope_tag(self) -> bytes:
        return self.forger.boxed(b"\0\x07X" + bytes(100))

    def i_on_active_queue(self) -> bytes:
        return self.forger.boxed(b"\0\x07I\0\x05wrong" + bytes(100))

    def agent_version_9(self) -> bytes:
        plain = self.forger.plain(AMsg(b"nine"))
        return self.forger.enveloped(self.forger.encrypted(plain), agent_version=9)

    def client_version_5(self) -> bytes:
        return self.versioned(5)

    def client_version_1(self) -> bytes:
        return self.versioned(1)

    def versioned(self, version: int) -> bytes:
        queue = replace(self.forger.snd_queue, client_version=version)
        encrypted = self.forger.encrypted(self.forger.plain(AMsg(b"versioned")))
        return self.forger.enveloped(encrypted, queue=queue)

    def wrong_box_key(self) -> bytes:
        queue = replace(self.forger.snd_queue, e2e_secret=bytes(32))
        return self.forger.enveloped(self.forger.encrypted(self.forger.plain(AMsg(b""))), queue=queue)

    def c_with_key_on_active_queue(self) -> bytes:
        return seal_confirmation(self.forger.snd_queue, self.confirmation(), system_entropy)

    def c_without_key_on_active_queue(self) -> bytes:
        return self.forger.boxed(self.confirmation())

    def confirmation(self) -> bytes:
        return encode(Confirmation(7, None, bytes(100)), write_agent_envelope)


def test_stimuli_are_written_as_recorded() -> None:
    assert recorded("MSG abc== 3 MsgOk one") == "MSG 3 MsgOk"


@pytest.mark.claim("CON-44")
@virtual
async def test_recorded_errors(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = transcript("error_matrix")["steps"]
    async with two_parties(tmp_path, quick_config(pq=False), quick_config(pq=False)) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await theirs.send(b"so that numbers are those of the record")
        await alice.message()
        forger = Forger(alice, ours, bob, theirs)
        await forger.told()
        stimuli = Stimuli(forger)
        for step in steps:
            told = [written(event) for event in await forger.deliver(stimuli.of(step["stimulus"]))]
            expected = [recorded(line) for line in step["events"]]
            assert told == expected, step["stimulus"]
