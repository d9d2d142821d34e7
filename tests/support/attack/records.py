"""Attackers whose TLS records say nothing, or one byte each."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.attack.attackers import STEP_S, Aim, Tls, context, shaken
from tests.support.attack.key_changes import KeyChanges

AT_ONCE = 500


async def changed_keys(aim: Aim) -> None:
    """Records that only change keys, hundreds in a write, on one session after the other."""
    with TemporaryDirectory() as folder:
        tls, log = context(aim), Path(folder) / "secrets"
        tls.keylog_filename = str(log)
        for number in aim.turns():
            with contextlib.suppress(OSError):
                session = Tls(aim, tls, number)
                changes = KeyChanges.of(session.tls, log)
                for _ in range(10):
                    session.sock.sendall(changes.records(AT_ONCE))
                    await asyncio.sleep(0)
                session.sock.close()
            await asyncio.sleep(STEP_S / 10)


async def tiny_records(aim: Aim) -> None:
    """Everything in records of one byte."""
    tls = context(aim)
    for number in aim.turns():
        with contextlib.suppress(OSError):
            session = shaken(aim, tls, number)
            for _ in range(20):
                session.sock.sendall(b"".join(session.sealed(b"\0") for _ in range(AT_ONCE)))
                await asyncio.sleep(0)
            session.sock.close()
        await asyncio.sleep(STEP_S / 10)
