"""The table of commands: a row for each command of the wire, and what each row says."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from blindpost.router.commands import ROWS, Row
from blindpost.router.meters import Meter
from blindpost.router.model import Party
from blindpost.wire.smp.commands import COMMANDS, Command
from blindpost.wire.smp.credentials import NEEDS_BOTH, NEEDS_NOTHING, RULES
from blindpost.wire.smp.handshake import ServiceRole

EVERY: tuple[type[Command], ...] = get_args(Command)


def tags(*facts: bool, rows: dict[type[Command], Row[Any]] = ROWS) -> set[str]:
    return {row.command.TAG.decode() for row, fact in zip(rows.values(), facts, strict=True) if fact}


def test_every_command_of_the_wire_has_one_row() -> None:
    assert {command.TAG for command in EVERY} == set(COMMANDS)
    assert list(ROWS) == [row.command for row in ROWS.values()]
    assert set(ROWS) == set(RULES) == set(EVERY)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.command.TAG.decode())
def test_a_row_has_exactly_one_decision(row: Row[Any]) -> None:
    assert [row.on_queue is not None, row.alone is not None, row.carries].count(True) == 1
    assert (row.on_queue is not None) is (row.party is not None)
    assert row.rule is RULES[row.command]
    assert row.roles, "somebody may send it"
    reads = bool(row.heads) + row.ends + row.link_data
    assert reads <= 1, "messages, ends and link data are read in different ways"
    if row.party is None:
        assert not (row.rekeys)
        assert not (row.decides_blocked)
        assert not (row.ends)
        assert not (row.notifications)
        assert bool(row.heads) is (row.repeats is not None)
    if row.rule.credentials is NEEDS_NOTHING:
        assert row.keys is None
    if row.rule.credentials is NEEDS_BOTH:
        assert row.keys is not None


def test_what_the_rows_say() -> None:
    rows = ROWS.values()
    by_party = {party: tags(*(row.party is party for row in rows)) for party in (*Party, None)}
    assert by_party == {
        Party.RECIPIENT: {
            "SUB",
            "KEY",
            "RKEY",
            "LSET",
            "LDEL",
            "NKEY",
            "NDEL",
            "GET",
            "ACK",
            "OFF",
            "DEL",
            "QUE",
        },
        Party.SENDER: {"SEND", "SKEY"},
        Party.NOTIFIER: {"NSUB"},
        Party.LINK: {"LKEY", "LGET"},
        None: {"NEW", "SUBS", "NSUBS", "PING", "PRXY", "PFWD", "RFWD", "RSLV"},
    }
    assert tags(*(row.keys is None for row in rows)) == {"PING", "PRXY", "PFWD", "RFWD", "RSLV"}
    assert tags(*(row.rekeys for row in rows)) == {"KEY", "SKEY", "LKEY", "RKEY"}
    assert tags(*(row.decides_blocked for row in rows)) == {"OFF", "DEL", "NSUB", "SEND"}
    assert tags(*(row.link_data for row in rows)) == {"LSET", "LKEY", "LGET"}
    assert tags(*(row.notifications for row in rows)) == {"NSUB", "NKEY", "NDEL", "DEL"}
    assert {row.command.TAG.decode(): row.heads for row in rows if row.heads} == {
        **dict.fromkeys(("SUB", "GET", "QUE", "NEW"), 1),
        "ACK": 2,
    }
    assert {row.command.TAG.decode(): row.refused for row in rows if row.refused} == {
        "SUB": Meter.SUB_AUTH,
        "NSUB": Meter.NTF_SUB_AUTH,
        "SEND": Meter.SENT_AUTH,
        "GET": Meter.GET_AUTH,
    }


def test_what_a_service_may_send_by_its_role() -> None:
    by_role = {role: tags(*(role in row.roles for row in ROWS.values())) for role in ServiceRole}
    everything = {command.TAG.decode() for command in EVERY}
    assert by_role == {
        ServiceRole.MESSAGING: everything - {"NSUB", "NSUBS", "RFWD"},
        ServiceRole.NOTIFIER: {"NSUB", "NSUBS", "PING"},
        ServiceRole.PROXY: {"RFWD", "PING"},
    }
