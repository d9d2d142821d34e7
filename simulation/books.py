"""Books of all servers of a run, beside what programs were told."""

from __future__ import annotations

from simulation.delivery import DeliveryParty
from simulation.journals import Book
from simulation.model import ViolationError
from simulation.notifications import NtfParty
from simulation.owners import OwnerParty
from simulation.party import Party
from simulation.routers import RouterParty
from simulation.run import Run
from simulation.schedules import OWNERS, ROUTERS

ROLES: dict[type[Party], str] = {RouterParty: "smp", NtfParty: "ntf", DeliveryParty: "ds"}


def keep_books(run: Run) -> None:
    """Servers of this run write journals."""
    for party in run.parties.values():
        for kind, role in ROLES.items():
            if isinstance(party, kind):
                party.book = Book(party, role)


def books(run: Run) -> list[Book]:
    return [party.book for party in run.parties.values() if party.book is not None]


def compare_books(run: Run) -> None:
    """What stores took is what programs were told, and it is recorded; tables are compared with it later."""
    for book in books(run):
        wrong = _of_payloads(run, book) or _of_notifications(run, book) or _of_messages(run, book)
        if lost := book.overdue():
            wrong = f"has not recorded {dict(lost)}"
        if wrong is not None:
            raise ViolationError(f"{book.party.name} {wrong}")


def _of_payloads(run: Run, book: Book) -> str | None:
    if book.party is not run.ds:
        return None
    took, boxes = book.so_far(), run.boxes.values()
    said, stored = sum(box.said for box in boxes), sum(len(box.stored) for box in boxes)
    if not stored <= took["enqueued"] <= said:
        return f"took {took['enqueued']} payloads of {said}, and said so of {stored}"
    if took["removed"] < (taken := sum(len(box.acknowledged) for box in boxes)):
        return f"removed {took['removed']} payloads, and said so of {taken}"
    return None


def _of_notifications(run: Run, book: Book) -> str | None:
    if run.ntf is None or book.party is not run.ntf:
        return None
    accepted, most = book.so_far()["accepted"], run.ntf.accepted_most
    return f"says that {accepted} notifications were accepted; {most} were" if accepted > most else None


def _of_messages(run: Run, book: Book) -> str | None:
    """Where only the plain client uses its router, all that is there is its own."""
    owner = run.parties.get(OWNERS[0])
    if book.party.name != ROUTERS[0] or run.agents or not isinstance(owner, OwnerParty):
        return None
    took, model = book.so_far(), owner.model
    if not len(model.taken) <= took["msgSent"] <= model.said:
        return f"took {took['msgSent']} of {model.said} messages, and said so of {len(model.taken)}"
    if took["msgRecv"] < len(model.acked):
        return f"removed {took['msgRecv']} messages, and said so of {len(model.acked)}"
    return None
