"""The parts that receiving, delivery and commands hand on to: rotation, ratchet sync, deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from blindpost.agent.model import MessageKind, RcvQueue, SndQueue, Whole
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.runtime import Tx
from blindpost.crypto.ratchet import RatchetFailure
from blindpost.wire.agent.envelopes import RatchetKey
from blindpost.wire.agent.messages import EReady, QAdd, QKey, QTest, QUse

CommandHandler = Callable[[StoredCommand], Awaitable[None]]
"""Runs one command under the lock of its connection. It raises an `AgentError`: a temporary one is tried
again, another one is reported and ends the command. It must be able to run again after a crash."""


class RotationHandler(Protocol):
    """Queue rotation. An `AgentError` is reported to the application; the message is acknowledged."""

    def received(self, tx: Tx, whole: Whole, queue: RcvQueue, message: QAdd | QKey | QUse | QTest) -> None:
        """A message about queues came through `queue`."""

    def first_message(self, tx: Tx, whole: Whole, queue: RcvQueue) -> None:
        """The first message came through a queue that replaces another one; it is active already."""

    def delivered(self, tx: Tx, whole: Whole, queue: SndQueue, kind: MessageKind) -> None:
        """QADD, QKEY, QUSE or QTEST was delivered to `queue`."""


class SyncHandler(Protocol):
    """Ratchet synchronisation."""

    def key_received(self, tx: Tx, whole: Whole, envelope: RatchetKey) -> None:
        """The peer's ratchet keys came; `tx.kem` has a key pair in hand."""

    def ready_received(self, tx: Tx, whole: Whole, message: EReady, *, had_sending_chain: bool) -> None:
        """EREADY came; whether our ratchet could send before it was read."""

    def decryption_failed(self, tx: Tx, whole: Whole, failure: RatchetFailure) -> None:
        """A message did not open, and is not one that was read before."""

    def decrypted(self, tx: Tx, whole: Whole) -> None:
        """A message opened."""


@dataclass
class Handlers:
    """Who does what."""

    rotation: RotationHandler
    sync: SyncHandler
    commands: dict[str, CommandHandler] = field(default_factory=dict)
