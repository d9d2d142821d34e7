"""Ratchet synchronisation: two ratchets that no longer fit are replaced, and the connection stays what it is.

What happens when is in `tables`; here it is done.
"""

from __future__ import annotations

import asyncio

from blindpost.agent.errors import InternalError, ProtocolCode, ProtocolError, prohibited
from blindpost.agent.events import RatchetSync
from blindpost.agent.machines import MoveRefusedError
from blindpost.agent.messages.sending import enqueue, enqueue_ratchet_key, ratchet_info
from blindpost.agent.model import ConnId, ConnRecord, ConnType, MessageKind, SyncState, Whole
from blindpost.agent.rotation.rotation import in_step
from blindpost.agent.store import connections, ratchet_keys, ratchets
from blindpost.agent.store.rotation import is_waiting
from blindpost.agent.sync.renewal import ad_of, hash_of, renewed, sign_of
from blindpost.agent.sync.tables import FAILURES, SYNC, SyncEffect, SyncEvent
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.ratchet import RatchetErrorKind, RatchetFailure
from blindpost.crypto.x3dh import PrivateParams, SyncRole, proposed_params, sync_hash
from blindpost.wire.agent.envelopes import RatchetKey
from blindpost.wire.agent.messages import EReady
from blindpost.wire.agent.sizes import PQ_AGENT_VERSION
from blindpost.wire.e2e import E2EParams
from blindpost.wire.frozen import dataclass

ANSWERS_MAX, ANSWERS_WITHIN_S = 3, 600
"""So many keys of a peer are answered in so many seconds while others are agreed."""
REPEAT_CHECK_S = 30.0
REPEAT_AFTER_S = (120.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0)
"""Keys are offered again if nothing comes of them in these times, and then no more."""
SAME_KEYS = 3
"""So often they are the same: a peer that was away may take others that it finds behind them for a mistake,
and ignores the same ones."""
SYNC_AGENT_VERSION = 3
"""From here on a peer knows ratchet keys."""

_WORDS = {
    RatchetErrorKind.AES: "DECRYPT_AES",
    RatchetErrorKind.HEADER: "RATCHET_HEADER",
    RatchetErrorKind.EARLIER: "RATCHET_EARLIER",
    RatchetErrorKind.SKIPPED: "RATCHET_SKIPPED",
}


@dataclass(frozen=True, slots=True)
class _Wait:
    """Since when a synchronisation is where it is, and how often keys were offered again."""

    state: SyncState
    since: float
    times: int = 0

    @staticmethod
    def going_on(before: _Wait | None, state: SyncState, now: float) -> _Wait:
        """An answer begins another wait; offers are counted until the ratchets are in step."""
        if before is None:
            return _Wait(state, now)
        return before if before.state is state else _Wait(state, now, before.times)

    def is_due(self, now: float) -> bool:
        return self.times < len(REPEAT_AFTER_S) and now - self.since >= REPEAT_AFTER_S[self.times]


class Synchronisation:
    """What the application asks."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    async def synchronize(self, conn_id: ConnId, *, force: bool, pq: bool | None) -> None:
        """Offer new ratchet keys to the peer; `pq` changes what the connection wants of the new ratchet."""
        async with self._ground.locked(conn_id), self._ground.kem_source() as kem:
            with self._ground.transaction(kem) as tx:
                whole = connections.load_whole(tx, conn_id)
                version = whole.record.agent_version
                if whole.type is not ConnType.DUPLEX:
                    raise prohibited("only a connection that works both ways can be synchronised")
                if version < SYNC_AGENT_VERSION and not force:
                    raise prohibited("the peer is too old to synchronise ratchets")
                if pq is not None:
                    connections.set_pq_support(tx, conn_id, pq and version >= PQ_AGENT_VERSION)
                try:
                    _step(tx, whole, SyncEvent.FORCED if force else SyncEvent.ASKED)
                except MoveRefusedError as error:
                    raise prohibited(str(error)) from error

    def begin_as_copy(self) -> list[ConnId]:
        """The store is a copy of one that stayed in use: no connection sends before it has a new ratchet.
        Under the old one its messages would look like copies of what the other store sent long ago."""
        with self._ground.transaction() as tx:
            return connections.require_sync(tx, SYNC_AGENT_VERSION)

    async def finish_as_copy(self, conn_ids: list[ConnId]) -> None:
        """Offer new keys for all of these. If this does not finish, the next start begins again."""
        for conn_id in conn_ids:
            async with self._ground.locked(conn_id), self._ground.kem_source() as kem:
                with self._ground.transaction(kem) as tx:
                    record = connections.find(tx, conn_id)
                    if record is not None and record.sync_state is SyncState.REQUIRED:
                        with tx.attempt(conn_id):
                            _step(tx, connections.load_whole(tx, conn_id), SyncEvent.ASKED)
        self._ground.store.forget_copy()

    async def keep_going(self) -> None:
        """Offer keys until the ratchets are in step: keys, the answer to them or the first message under the
        new ratchet may be lost, and what was taken for the answer may be one to keys offered before."""
        waiting: dict[ConnId, _Wait] = {}
        while True:
            await asyncio.sleep(REPEAT_CHECK_S)
            now, found = self._ground.now(), connections.unsettled_sync(self._ground.store.reading)
            waiting = {conn_id: _Wait.going_on(waiting.get(conn_id), state, now) for conn_id, state in found}
            for conn_id, wait in list(waiting.items()):
                if wait.is_due(now) and await self._offer_again(conn_id, wait):
                    waiting[conn_id] = _Wait(wait.state, now, wait.times + 1)

    async def _offer_again(self, conn_id: ConnId, wait: _Wait) -> bool:
        """Unless the peer has not been sent what we have for it, or something has come of it meanwhile."""
        async with self._ground.locked(conn_id), self._ground.kem_source() as kem:
            with self._ground.transaction(kem) as tx:
                record = connections.find(tx, conn_id)
                if record is None or record.sync_state is not wait.state:
                    return False
                if is_waiting(tx, conn_id, MessageKind.RATCHET_INFO, MessageKind.EREADY):
                    return False
                event = SyncEvent.UNANSWERED if wait.times < SAME_KEYS else SyncEvent.FORCED
                with tx.attempt(conn_id):
                    _step(tx, connections.load_whole(tx, conn_id), event)
                return True


def key_received(tx: Tx, whole: Whole, envelope: RatchetKey) -> None:
    """The peer's ratchet keys; they are processed once, however often they come, unless the peer says that it
    has agreed on them and on ours."""
    conn_id, peer = whole.conn_id, envelope.e2e
    if whole.type is not ConnType.DUPLEX:
        raise ProtocolError(ProtocolCode.A_QUEUE, "ratchet keys for a connection that is not duplex")
    key_hash = hash_of(peer)
    event = _key_event(tx, conn_id, envelope)
    # The hash says nothing about the version: the same keys may come with another one.
    if event is not SyncEvent.KEY_AGAIN and peer.version not in tx.config.versions.e2e:
        raise ProtocolError(ProtocolCode.A_VERSION)
    if event not in (SyncEvent.KEY_REPEATED, SyncEvent.KEY_AGAIN):
        ratchet_keys.remember(tx, conn_id, key_hash, tx.now)
    try:
        _step(tx, whole, event, peer)
    except MoveRefusedError as error:
        raise _crypto_error("RATCHET_SYNC", error.why) from error
    except CryptoError as error:
        raise _crypto_error("RATCHET_SYNC", str(error)) from error


def _key_event(tx: Tx, conn_id: ConnId, envelope: RatchetKey) -> SyncEvent:
    kept, key_hash = ratchets.find_params(tx, conn_id), hash_of(envelope.e2e)
    reflected = kept is not None and sync_hash(kept.key1.public, kept.key2.public) == key_hash
    if ratchet_keys.is_processed(tx, conn_id, key_hash):
        if kept is None or reflected:
            return SyncEvent.KEY_AGAIN
        agreed = ratchet_info(sign_of(ad_of(kept, envelope.e2e)))
        return SyncEvent.KEY_REPEATED if envelope.info == agreed else SyncEvent.KEY_AGAIN
    if reflected:
        return SyncEvent.KEY_REFLECTED
    often = ratchet_keys.count_since(tx, conn_id, tx.now - ANSWERS_WITHIN_S) >= ANSWERS_MAX
    return SyncEvent.KEY_ONCE_MORE if often else SyncEvent.KEY


def ready_received(tx: Tx, whole: Whole, message: EReady, *, had_sending_chain: bool) -> None:
    """The peer's new ratchet works. If we could not send before this message, we reply with the same."""
    if not had_sending_chain:
        ready = EReady(whole.record.last_external_id)
        enqueue(tx, whole, ready, despite_sync=True)


def decryption_failed(tx: Tx, whole: Whole, failure: RatchetFailure) -> None:
    """Of a kind that says something about the ratchets; whoever asks has dealt with the others."""
    event, word = FAILURES[failure.kind], _WORDS[failure.kind]
    assert event is not None
    error = _crypto_error(f"{word} {failure.count}" if failure.count else word)
    if whole.type is ConnType.DUPLEX:
        _step(tx, whole, event, error=error)
    else:
        tx.failed(whole.conn_id, error)


def decrypted(tx: Tx, whole: Whole) -> None:
    state = connections.load(tx, whole.conn_id).sync_state
    if SYNC.step(state, SyncEvent.READ).to is not state:
        with tx.attempt(whole.conn_id):
            _step(tx, whole, SyncEvent.READ)


def _step(
    tx: Tx,
    whole: Whole,
    event: SyncEvent,
    peer: E2EParams | None = None,
    error: ProtocolError | None = None,
) -> None:
    record = connections.load(tx, whole.conn_id)
    move = SYNC.step(record.sync_state, event)
    connections.set_sync_state(tx, record.conn_id, move.to)
    own: PrivateParams | None = None
    for effect in move.effects:
        match effect:
            case SyncEffect.OFFER_KEYS:
                version = tx.config.versions.e2e.high
                own = _new_params(tx, record, version)
                ratchets.set_params(tx, record.conn_id, own)
                enqueue_ratchet_key(tx, whole, own.public(version))
            case SyncEffect.MAKE_KEYS:
                assert peer is not None
                own = _new_params(tx, record, peer.version)
            case SyncEffect.SEND_KEYS:
                assert peer is not None
                assert own is not None
                enqueue_ratchet_key(tx, whole, own.public(peer.version))
            case SyncEffect.TAKE_KEPT_KEYS:
                own = ratchets.find_params(tx, record.conn_id)
                if own is None:
                    raise InternalError("the ratchet keys that were sent are not in the store")
            case SyncEffect.REPEAT_KEYS:
                assert own is not None
                version, about = _repeating(tx, record.conn_id, move.to)
                enqueue_ratchet_key(tx, whole, own.public(version), about)
            case SyncEffect.REPEAT_READY:
                ratchet = ratchets.find_ratchet(tx, record.conn_id)
                if ratchet is not None and ratchet.snd is not None:
                    enqueue(tx, whole, EReady(record.last_external_id), despite_sync=True)
            case SyncEffect.AGREE:
                assert peer is not None
                assert own is not None
                _agree(tx, whole, own, peer)
            case SyncEffect.TELL:
                tx.emit(RatchetSync(tx.handle(record.conn_id), move.to, error))
    if record.sync_state is SyncState.AGREED and move.to is SyncState.OK:
        ratchets.forget_params(tx, record.conn_id)
    if record.sync_state.send_prohibited and not move.to.send_prohibited:
        in_step(tx, record.conn_id)


def _new_params(tx: Tx, record: ConnRecord, version: int) -> PrivateParams:
    entropy = tx.config.entropy
    return proposed_params(version, pq=record.pq_support, entropy=entropy, kem=tx.kem)


def _repeating(tx: Tx, conn_id: ConnId, state: SyncState) -> tuple[int, bytes]:
    """The version of keys that are sent again, and what is said about them: if a ratchet was made from them,
    its version, and with which keys of the peer."""
    ratchet = ratchets.find_ratchet(tx, conn_id) if state is SyncState.AGREED else None
    return (tx.config.versions.e2e.high, b"") if ratchet is None else (ratchet.current, sign_of(ratchet.ad))


def _agree(tx: Tx, whole: Whole, own: PrivateParams, peer: E2EParams) -> None:
    """Replace the ratchet with all its skipped keys; our own are kept until it works, other keys may come."""
    config, conn_id = tx.config, whole.conn_id
    record = connections.load(tx, conn_id)
    made = renewed(own, peer, config.versions.e2e.high, pq_support=record.pq_support, entropy=config.entropy)
    ratchets.delete_ratchet(tx, conn_id)
    ratchets.set_ratchet(tx, conn_id, made.ratchet)
    ratchets.set_params(tx, conn_id, own)
    if made.role is SyncRole.SENDER:
        enqueue(tx, whole, EReady(record.last_external_id), despite_sync=True)


def _crypto_error(detail: str, message: str = "") -> ProtocolError:
    return ProtocolError(ProtocolCode.A_CRYPTO, message, detail=detail)
