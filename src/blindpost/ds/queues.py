"""The rules of queues: append, take, give back, remove. Pure decisions over one turn.

Order is strict: nobody gets a payload while another connection holds an earlier one of the same queue that
may still come back. So whatever is given back is delivered before what came after it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from blindpost.ds.checks import UNAUTHENTICATED, Refusal, queue_of, refusal
from blindpost.ds.meters import Meter
from blindpost.ds.model import LARGE_BYTES, TAG_SIZE, DsRules, Entry, delivery_id, number_and_tag
from blindpost.ds.state import Hold, Peer, TakeRequest, Wait
from blindpost.ds.turn import Stage, Taken, Turn
from blindpost.wire.capnp.node import (
    Ack,
    Done,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    Fingerprint,
    KeyPackage,
    Lease,
    Result,
    UploadKeyPackage,
)
from blindpost.wire.capnp.rpc import ExceptionType

TOO_MANY_WAITS = Refusal("too many waiting calls", ExceptionType.OVERLOADED)
TOO_MANY_PACKAGES = Refusal("too many key packages are stored for this identity", ExceptionType.OVERLOADED)


@dataclass(frozen=True, slots=True)
class Available:
    """What one connection may take from a queue now."""

    entries: tuple[Entry, ...]
    is_complete: bool = True
    """False if there may be more that this turn has not loaded."""
    until: float | None = None
    """When payloads held by others may be taken from them, if that is why there is no more."""


def enqueue(turn: Turn, peer: Peer, question: int, request: Enqueue) -> None:
    """Append a payload. A large one is only admitted here: `staged` appends it once it is written."""
    call = Stage(peer, question, request, turn.callers.get(request.auth), turn.entropy(TAG_SIZE))
    if not _is_admitted(turn, call):
        return
    if len(request.payload) > LARGE_BYTES:
        turn.stage(call)
    else:
        turn.view.add(call.queue, call.tag, request.payload)
        _enqueued(turn, call)


def staged(turn: Turn, stage: Stage) -> None:
    """A large payload is written: append it to the queue, if there is still room."""
    if _is_admitted(turn, stage):
        turn.view.add_staged(stage.queue, stage.tag, len(stage.payload))
        _enqueued(turn, stage)
    else:
        turn.drop(stage)


def _is_admitted(turn: Turn, call: Stage) -> bool:
    """Whether a payload may be stored; if not, its caller is told."""
    over = turn.quotas.refusal(call.request, call.caller, turn.rules)
    if over is not None:
        refuse(turn, call.peer, call.question, over)
        return False
    full = _full(turn, call.peer, call.queue, len(call.payload))
    if full is not None:
        turn.count(Meter.REFUSED_FULL)
        turn.answer(call.peer, call.question, full)
        return False
    return True


def _enqueued(turn: Turn, call: Stage) -> None:
    queue, size = call.queue, len(call.payload)
    _added(turn, call.peer, queue, size)
    turn.quotas.count(call.request, call.caller, turn.rules)
    turn.tell("enqueued", queue, delivery_id(turn.view.ends(queue).tail - 1, call.tag))
    turn.count(Meter.ENQUEUED)
    turn.count(Meter.ENQUEUED_BYTES, size)
    turn.answer(call.peer, call.question, Done())
    turn.wake(queue)


def _full(turn: Turn, peer: Peer, queue: bytes, size: int) -> Refusal | None:
    """Why another payload of this size cannot be stored. What is stored is never dropped for it."""
    rules, ends, (payloads, total) = turn.rules, turn.view.ends(queue), turn.view.totals
    if ends.count >= rules.queue_payloads:
        return _full_refusal(f"queue is full ({rules.queue_payloads} payloads)")
    if ends.size + size > rules.queue_bytes:
        return _full_refusal(f"queue is full ({rules.queue_bytes} bytes)")
    if payloads >= rules.total_payloads or total + size > rules.total_bytes:
        return _full_refusal("the delivery service is full")
    if not turn.stored.allows(peer.account, size):
        return _full_refusal("the delivery service is nearly full, and much of it came from this address")
    return None


def _added(turn: Turn, peer: Peer, queue: bytes, size: int) -> None:
    """Count the last payload of a queue against the address that it came from."""
    turn.stored.add(peer.account, (queue, turn.view.ends(queue).tail - 1), size)


def _full_refusal(reason: str) -> Refusal:
    return Refusal(reason, ExceptionType.OVERLOADED)


def take(turn: Turn, peer: Peer, question: int, request: TakeRequest) -> bool:
    """Answer with what is available, or wait. False if the turn has not loaded enough to tell."""
    if peer.is_gone:
        return True  # nothing may be handed out after a disconnect
    queue = queue_of(request)
    found = available(turn, peer, queue, payloads_max(turn.rules, request))
    if found.entries:
        _hand_out(turn, peer, question, request, queue, found.entries)
        return True
    if not found.is_complete:
        return False
    timeout_s = _timeout_s(turn.rules, request)
    if timeout_s <= 0:
        turn.answer(peer, question, _nothing(request))
    elif _too_many_waits(turn, peer, queue):
        turn.count(Meter.REFUSED_WAITS)
        turn.answer(peer, question, TOO_MANY_WAITS)
    else:
        assert not isinstance(request, Fetch)
        wait = Wait(peer, question, request, queue, turn.now, turn.now + timeout_s)
        turn.begin_wait(wait)
        turn.count(Meter.WAITS)
        turn.tell_wait("waited", wait)
        if found.until is not None:
            turn.wake(queue, found.until - turn.now)
    return True


def _too_many_waits(turn: Turn, peer: Peer, queue: bytes) -> bool:
    rules, state = turn.rules, turn.state
    return (
        len(peer.waits) >= rules.waits_per_connection
        or len(state.waiters.get(queue) or ()) >= rules.waits_per_queue
        or len(state.waiting) >= rules.waits
    )


def available(turn: Turn, peer: Peer, queue: bytes, payloads: int) -> Available:
    """The first payloads of a queue that this connection may have, as many as fit in one answer."""
    taken: list[Entry] = []
    room = turn.rules.response_bytes
    for entry in turn.view.head(queue):
        hold = turn.state.held.get((queue, entry.number))
        if hold is not None:
            if hold.keeps_from(peer, turn.now):
                return Available(tuple(taken), until=hold.until)
            if hold.is_passed_by(peer, turn.now):
                continue
        if len(taken) == payloads or (taken and entry.size > room):
            return Available(tuple(taken))
        if entry.payload is None and not entry.is_large:
            return Available(tuple(taken), is_complete=False)
        room -= entry.size
        taken.append(entry)
    return Available(tuple(taken), is_complete=not turn.view.is_cut(queue))


def _hand_out(
    turn: Turn, peer: Peer, question: int, request: TakeRequest, queue: bytes, entries: tuple[Entry, ...]
) -> None:
    rules, state = turn.rules, turn.state
    for entry in entries:
        if state.take_away(queue, entry.number) is not None:
            turn.count(Meter.DISPLACED)
            turn.tell("expired", queue, entry.id)
    hold_s = _lease_s(rules, request) if isinstance(request, Lease) else rules.hold_s
    state.hold(peer, question, queue, entries, turn.now + hold_s, request)
    turn.count(Meter.HANDED_OUT, len(entries))
    turn.tell("leased", queue, *(entry.id for entry in entries))
    taken = Taken(queue, entries, isinstance(request, Lease))
    turn.answer(peer, question, taken if taken.apart else taken.result({}), is_held=True)


def finish(turn: Turn, peer: Peer, question: int) -> None:
    """The caller has taken an answer: what a fetch handed out is deleted; a lease stays."""
    hold = _answered(peer, question)
    if hold is None or hold.is_lease:
        return
    entries = turn.state.let_go(hold)
    turn.count(Meter.FINISHED, len(entries))
    for entry in entries:
        turn.delete(hold.queue, entry)
        turn.tell("acked", hold.queue, entry.id)
    turn.wake(hold.queue)


def _answered(peer: Peer, question: int) -> Hold | None:
    number = peer.answered.pop(question)
    return None if number is None else peer.holds.get(number)


def give_back(turn: Turn, hold: Hold) -> None:
    """The answer was not taken, or the lease ended with its connection: put everything back."""
    entries = turn.state.let_go(hold)
    turn.count(Meter.PUT_BACK, len(entries))
    turn.tell("put_back", hold.queue, *(entry.id for entry in entries))
    turn.wake(hold.queue)


def acknowledge(turn: Turn, peer: Peer, question: int, request: Ack) -> None:
    """Remove deliveries by id; unknown ids are skipped."""
    queue = queue_of(request)
    for given in request.ids:
        named = number_and_tag(given)
        entry = None if named is None else turn.view.entry(queue, named[0])
        if named is not None and entry is not None and entry.tag == named[1]:
            turn.state.take_away(queue, entry.number)
            turn.delete(queue, entry)
            turn.count(Meter.ACKNOWLEDGED)
            turn.tell("acked", queue, entry.id)
    turn.answer(peer, question, Done())
    turn.wake(queue)


def cancel(turn: Turn, peer: Peer, question: int) -> None:
    """The caller no longer wants the answer."""
    wait = turn.state.waiting.get((peer.number, question))
    if wait is not None:
        turn.state.end_wait(wait)
        turn.count(Meter.WAITS_CANCELED)
        turn.answer(peer, question, None)
    hold = _answered(peer, question)
    if hold is not None:
        give_back(turn, hold)


def disconnect(turn: Turn, peer: Peer) -> None:
    """A connection has ended: its calls stop waiting, and what it held is put back."""
    for question in tuple(peer.waits):
        wait = peer.waits.get(question)
        assert wait is not None
        turn.state.end_wait(wait)
        turn.count(Meter.WAITS_CANCELED)
    for number in tuple(peer.holds):
        hold = peer.holds.get(number)
        assert hold is not None
        give_back(turn, hold)


def refuse(turn: Turn, peer: Peer, question: int, refused: Refusal) -> None:
    """Tell a caller that its call was refused by the checks."""
    turn.count(Meter.REFUSED_AUTH if refused is UNAUTHENTICATED else Meter.REFUSED)
    turn.answer(peer, question, refused)


def recheck(turn: Turn) -> None:
    """The authority was replaced: refuse what it would not allow now.

    Such calls stop waiting, and what such calls were handed is put back for others.
    """
    for _, wait in tuple(turn.state.waiting.items()):
        refused = refusal(wait.request, turn.callers.get(wait.request.auth))
        if refused is not None:
            turn.state.end_wait(wait)
            turn.count(Meter.WAITS_CANCELED)
            refuse(turn, wait.peer, wait.question, refused)
    holds = {hold.number: hold for _, hold in turn.state.held.items()}
    for hold in holds.values():
        if refusal(hold.request, turn.callers.get(hold.request.auth)) is not None:
            give_back(turn, hold)


def wake(turn: Turn, queue: bytes) -> bool:
    """Let all waiting calls of a queue look again, the oldest first. False if more has to be loaded."""
    enough, in_vain = True, set[Peer]()
    for wait in turn.state.waiters.get(queue) or ():
        turn.count(Meter.WAKES)
        if wait.peer in in_vain:
            continue
        found = available(turn, wait.peer, queue, payloads_max(turn.rules, wait.request))
        if found.entries:
            turn.state.end_wait(wait)
            turn.observe_wait(turn.now - wait.started)
            turn.tell_wait("woken", wait)
            _hand_out(turn, wait.peer, wait.question, wait.request, queue, found.entries)
            continue
        in_vain.add(wait.peer)  # what others take now leaves no more for it
        if not found.is_complete:
            enough = False
        elif found.until is not None:
            turn.wake(queue, found.until - turn.now)
    return enough


def wait_over(turn: Turn, wait: Wait) -> bool:
    """A waiting call has timed out: it gets what is available, usually nothing.

    False if the turn has not loaded enough to tell.
    """
    if turn.state.waiting.get((wait.peer.number, wait.question)) is not wait:
        return True
    found = available(turn, wait.peer, wait.queue, payloads_max(turn.rules, wait.request))
    if not found.entries and not found.is_complete:
        return False
    turn.state.end_wait(wait)
    turn.count(Meter.WAITS_EXPIRED)
    turn.tell_wait("timed_out", wait)
    if found.entries:
        _hand_out(turn, wait.peer, wait.question, wait.request, wait.queue, found.entries)
    else:
        turn.answer(wait.peer, wait.question, _nothing(wait.request))
    return True


def upload_package(turn: Turn, peer: Peer, question: int, request: UploadKeyPackage) -> None:
    queue = queue_of(request)
    refused = _full(turn, peer, queue, len(request.package))
    if refused is None and turn.view.ends(queue).count >= turn.rules.key_packages:
        refused = TOO_MANY_PACKAGES
    if refused is not None:
        turn.count(Meter.REFUSED_FULL)
        turn.answer(peer, question, refused)
        return
    turn.view.add(queue, turn.entropy(TAG_SIZE), request.package)
    _added(turn, peer, queue, len(request.package))
    turn.count(Meter.KEY_PACKAGES_UPLOADED)
    turn.answer(peer, question, Fingerprint(hashlib.sha256(request.package).digest()))


def fetch_package(turn: Turn, peer: Peer, question: int, request: FetchKeyPackage) -> bool:
    """The oldest key package. False if the turn has not loaded enough to tell.

    It is removed before the answer is sent: losing one does no harm, using one twice does.
    """
    queue, caller = queue_of(request), turn.callers.get(request.auth)
    over = turn.quotas.refusal(request, caller, turn.rules)
    if over is not None:
        refuse(turn, peer, question, over)
        return True
    entry = next(turn.view.head(queue), None)
    if entry is None:
        if turn.view.is_cut(queue):
            return False
        turn.answer(peer, question, KeyPackage(b""))
        return True
    if entry.payload is None:
        return False
    turn.delete(queue, entry)
    turn.quotas.count(request, caller, turn.rules)
    turn.count(Meter.KEY_PACKAGES_FETCHED)
    turn.answer(peer, question, KeyPackage(entry.payload))
    return True


def payloads_max(rules: DsRules, request: TakeRequest) -> int:
    wanted = request.max_payloads if isinstance(request, Lease) else 0
    return min(wanted or rules.response_payloads, rules.response_payloads)


def _timeout_s(rules: DsRules, request: TakeRequest) -> float:
    return 0.0 if isinstance(request, Fetch) else min(request.timeout_ms / 1000, rules.wait_s_max)


def _lease_s(rules: DsRules, request: Lease) -> float:
    return min(request.lease_ms / 1000 or rules.lease_s, rules.lease_s_max)


def _nothing(request: TakeRequest) -> Result:
    return Taken(b"", (), isinstance(request, Lease)).result({})
