"""What an operator can have done from the page: audit a router, back up a server, block a link."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from blindpost.ops.kinds import AUDIT, BACKUP, BLOCK, WITHOUT
from blindpost.ops.wording import size
from blindpost.serving.backups import Made, free_name
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder

Form = Mapping[str, str]
"""What was filled in."""

_ALWAYS_TOLD = ("services", "queues")
_REASONS = ("spam", "content")


async def audit(_word: str, folder: Path, _form: Form) -> str:
    """What `blindpost router audit` would say."""
    from blindpost.router.running.auditing import audit_place
    from blindpost.router.running.settings import RouterPlace

    found = await asyncio.to_thread(lambda: asyncio.run(audit_place(RouterPlace.read(folder), repairs=False)))
    sums = {name: count for name, count in found.values().items() if count or name in _ALWAYS_TOLD}
    told = ", ".join(f"{name} {count:,}" for name, count in sums.items())
    return f"{'Everything agrees' if found.clean else 'There are differences'}: {told}."


def backups_of(folder: Path) -> Path:
    """Where the backups of a server are put: beside its folder, which a restore replaces."""
    return folder.with_name(f"{folder.name}-backups")


async def backup(word: str, folder: Path, _form: Form) -> str:
    """`backup` of a server into a new folder beside its own."""
    target = free_name(backups_of(folder) / time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime()))

    def work() -> Made:
        make_folder(target.parent)
        return _BACK_UP[word](folder, target)

    made = await asyncio.to_thread(work)
    without = "".join(f" {file} lies outside and is not in it." for file in made.left_out)
    return f"Backed up {size(made.size)} to {target}{WITHOUT[word]}. Copy it to another machine.{without}"


def _back_up_router(folder: Path, target: Path) -> Made:
    from blindpost.router.running.backup import back_up
    from blindpost.router.running.settings import RouterPlace

    return back_up(RouterPlace.read(folder), target, with_ca_key=False)


def _back_up_ntf(folder: Path, target: Path) -> Made:
    from blindpost.ntf.backup import back_up
    from blindpost.ntf.settings import NtfPlace

    return back_up(NtfPlace.read(folder), target, with_ca_key=False, with_store_key=False)


def _back_up_ds(folder: Path, target: Path) -> Made:
    from blindpost.ds.backup import back_up
    from blindpost.ds.settings import DsPlace

    return back_up(DsPlace.read(folder), target)


_BACK_UP = {"router": _back_up_router, "ntf": _back_up_ntf, "ds": _back_up_ds}


async def block(_word: str, folder: Path, form: Form) -> str:
    """`blindpost router queues block`, by a link or an id."""
    from blindpost.router.running.settings import RouterPlace
    from blindpost.serving.place import ask_running

    if form.get("reason") not in _REASONS:
        raise OperatorError("Choose a reason: spam or content. The users of the queue are told.")
    named, place = form.get("link", ""), RouterPlace.read(folder)
    await asyncio.to_thread(ask_running, place, "block", id=named, reason=form["reason"])
    return "Blocked: nothing more is sent to this queue or received from it."


ACTIONS: Mapping[str, Callable[[str, Path, Form], Awaitable[str]]] = {
    AUDIT: audit,
    BACKUP: backup,
    BLOCK: block,
}
