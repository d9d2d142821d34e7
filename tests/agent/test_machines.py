"""The tables of rotation and synchronisation: complete, reachable, and documented as they are."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import RcvSwitch, SndSwitch, SyncState
from blindpost.agent.machine_docs import document
from blindpost.agent.machines import Machine, Move, MoveRefusedError, Refused, label, row
from blindpost.agent.rotation.tables import RECIPIENT, SENDER, RecipientEvent, SenderEvent
from blindpost.agent.sync.tables import (
    FAILURES,
    PROHIBITED,
    SYNC,
    Sending,
    SyncEffect,
    SyncEvent,
)
from blindpost.crypto.ratchet import RatchetErrorKind

MACHINES: tuple[Machine[Any, Any, Any], ...] = (RECIPIENT, SENDER, SYNC)
PAGE = Path(__file__).parents[2] / "docs" / "agent-machines.md"


class _Light(Enum):
    RED = "red"
    GREEN = "green"


STOP: Move[_Light, _Light] = Move(_Light.RED)
GO: Move[_Light, _Light] = Move(_Light.GREEN)


def two_lights(*, whole: bool) -> Machine[_Light, _Light, _Light]:
    cells: dict[tuple[_Light, _Light], Move[_Light, _Light] | Refused]
    cells = {(_Light.RED, _Light.RED): Refused("it is"), (_Light.RED, _Light.GREEN): GO}
    if whole:
        cells |= row(_Light.GREEN, {_Light.RED: STOP, _Light.GREEN: GO})
    return Machine("lights", "", tuple(_Light), tuple(_Light), tuple(_Light), cells)


def test_a_table_with_a_missing_pair_cannot_be_made() -> None:
    assert two_lights(whole=True).step(_Light.RED, _Light.GREEN) is GO
    with pytest.raises(MoveRefusedError, match="lights: it is"):
        two_lights(whole=True).step(_Light.RED, _Light.RED)
    with pytest.raises(ValueError, match="green/RED"):
        two_lights(whole=False)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_pair_is_a_move_or_refused(machine: Machine[Any, Any, Any]) -> None:
    for state in machine.states:
        for event in machine.events:
            cell = machine.cells[state, event]
            if isinstance(cell, Refused):
                with pytest.raises(MoveRefusedError) as refused:
                    machine.step(state, event)
                assert (refused.value.state, refused.value.event) == (state, event)
                assert refused.value.why == cell.why
            else:
                assert machine.step(state, event) is cell
                assert cell.to in machine.states
                assert set(cell.effects) <= set(machine.effects)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_is_reached_and_left_and_every_effect_used(machine: Machine[Any, Any, Any]) -> None:
    moves = {pair: cell for pair, cell in machine.cells.items() if isinstance(cell, Move)}
    for state in machine.states:
        assert any(cell.to is state and pair[0] is not state for pair, cell in moves.items()), label(state)
        assert any(cell.to is not state and pair[0] is state for pair, cell in moves.items()), label(state)
    assert {effect for cell in moves.values() for effect in cell.effects} == set(machine.effects)


def path(machine: Machine[Any, Any, Any], *events: Enum) -> list[Any]:
    """The states on the way, from the first one."""
    states = [machine.states[0]]
    for event in events:
        states.append(machine.step(states[-1], event).to)
    return states


def test_paths_through_a_rotation() -> None:
    recipient, sender = RecipientEvent, SenderEvent
    assert path(
        RECIPIENT,
        recipient.ASKED,
        recipient.QUEUE_MADE,
        recipient.QKEY,
        recipient.SECURED,
        recipient.FIRST_MESSAGE,
        recipient.OLD_DELETED,
    ) == [
        None,
        RcvSwitch.SWITCH_STARTED,
        RcvSwitch.SENDING_QADD,
        RcvSwitch.SENDING_QADD,
        RcvSwitch.SENDING_QUSE,
        RcvSwitch.RECEIVED_MESSAGE,
        None,
    ]
    assert path(SENDER, sender.QADD, sender.QKEY_DELIVERED, sender.QUSE, sender.QTEST_DELIVERED) == [
        None,
        SndSwitch.SENDING_QKEY,
        SndSwitch.SENDING_QKEY,
        SndSwitch.SENDING_QTEST,
        None,
    ]
    abortable = {
        state for state in RECIPIENT.states if isinstance(RECIPIENT.cells[state, recipient.ABORTED], Move)
    }
    assert abortable == {RcvSwitch.SWITCH_STARTED, RcvSwitch.SENDING_QADD}


def test_paths_through_a_synchronisation() -> None:
    event = SyncEvent
    ok, allowed, required, started, agreed = SyncState
    assert path(SYNC, event.MISSED, event.ASKED, event.KEY, event.READ) == [ok, allowed, started, agreed, ok]
    assert path(SYNC, event.BROKEN, event.ASKED, event.READ, event.KEY) == [
        ok,
        required,
        started,
        started,
        agreed,
    ]
    assert path(SYNC, event.FORCED, event.KEY, event.KEY) == [ok, started, agreed, agreed]
    assert path(SYNC, event.KEY, event.READ) == [ok, agreed, ok]
    for state in SyncState:
        answers = SYNC.step(state, event.KEY).effects
        assert (SyncEffect.SEND_KEYS in answers) == (state is not started)
        more = SYNC.step(state, event.KEY_ONCE_MORE).effects
        assert (SyncEffect.SEND_KEYS in more) == (state in (ok, allowed, required))
        assert SYNC.step(state, event.KEY_AGAIN) == Move(state)
        with pytest.raises(MoveRefusedError):
            SYNC.step(state, event.KEY_REFLECTED)


def test_every_decryption_failure_has_an_event() -> None:
    assert FAILURES.keys() == set(RatchetErrorKind)
    assert {kind for kind, event in FAILURES.items() if event is SyncEvent.BROKEN} == {
        RatchetErrorKind.HEADER,
        RatchetErrorKind.SKIPPED,
    }
    assert {kind for kind, event in FAILURES.items() if event is SyncEvent.MISSED} == {
        RatchetErrorKind.AES,
        RatchetErrorKind.EARLIER,
    }


@pytest.mark.parametrize("state", SyncState)
def test_what_may_be_sent(state: SyncState) -> None:
    assert PROHIBITED.keys() == set(SyncState)
    allowed = set(Sending) - PROHIBITED[state]
    if state in (SyncState.OK, SyncState.ALLOWED):
        assert allowed == set(Sending)
    else:
        assert allowed == {Sending.EREADY, Sending.RATCHET_KEY}


def test_page_is_generated_from_the_tables() -> None:
    assert PAGE.read_text() == document(), "run python -m blindpost.agent.machine_docs"
