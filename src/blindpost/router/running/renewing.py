"""Web certificates that the router gets itself: when one is due, who is asked, and what a failure means."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from blindpost.router.running.settings import RouterPlace
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder, read_file, write_file
from blindpost.serving.logs import log
from blindpost.web.challenges import Challenges, IssueError, new_key

FOLDER = "acme"
CHECK_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 3_600.0, 12 * 3_600.0
"""After a first failure, and after many: an authority counts failures, and refuses who fails often."""
ATTEMPT_S_MAX = 600.0
LEFT = 1 / 3
"""A certificate is renewed when this part of its time is left."""

Issue = Callable[[bytes, list[str], Challenges], bytes]
"""A private key and a chain for names, with the account's key; it waits."""


def acme_files(place: RouterPlace) -> tuple[Path, Path]:
    """The key of our account, and one file with the certificate's key and chain: they change at once."""
    return place.folder / FOLDER / "account.key", place.folder / FOLDER / "web.pem"


def public_names(hosts: Sequence[str]) -> list[str]:
    """The hosts that an authority certifies: names, no addresses, and no names of Tor."""
    return [
        host.lower()
        for host in hosts
        if any(letter.isalpha() for letter in host) and ":" not in host and not host.endswith(".onion")
    ]


def is_due(leaf: x509.Certificate, names: Sequence[str], now: datetime) -> bool:
    """Whether a certificate is to be replaced: its time is nearly over, or a name is missing."""
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    held = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = set(names).difference(held.get_values_for_type(x509.DNSName))
    return bool(missing) or end - now <= (end - begin) * LEFT


def demand_possible(place: RouterPlace) -> None:
    """What must be so before a router can ask for a certificate."""
    if not public_names(place.settings.address.hosts):
        raise OperatorError(
            f"{place.file}: web.acme needs a DNS name in address.hosts, since no authority certifies IP "
            "or onion addresses. Name one, or set acme = false."
        )
    if any(importlib.util.find_spec(name) is None for name in ("acme", "josepy")):
        raise OperatorError(
            f"{place.file}: web.acme needs packages that are not installed. Install them with "
            "`pip install 'blindpost[acme]'`, or set acme = false."
        )


class Renewal:
    """Keeps the file with the certificate fresh; the site takes it up as it does any other."""

    def __init__(
        self,
        place: RouterPlace,
        issue: Issue | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._place = place
        self._issue = issue or _issue_of(place)
        self._clock = clock
        self._now = now
        self._failures = 0
        self._not_before = clock()
        self.challenges = Challenges()
        self.trouble: str | None = None

    async def look(self) -> None:
        """Get a certificate if one is due. A failure is told, and tried again hours later."""
        if self._clock() < self._not_before or not self._is_due():
            return
        names = public_names(self._place.settings.address.hosts)
        try:
            await self._renew(names)
        except Exception as error:
            self._failed(error)
        else:
            self._failures, self.trouble = 0, None
            log.info("the authority gave a web certificate for %s", ", ".join(names))

    def _is_due(self) -> bool:
        names = public_names(self._place.settings.address.hosts)
        try:
            leaf = x509.load_pem_x509_certificates(acme_files(self._place)[1].read_bytes())[0]
            return bool(names) and is_due(leaf, names, self._now())
        except (OSError, ValueError, x509.ExtensionNotFound):
            return bool(names)

    async def _renew(self, names: list[str]) -> None:
        account, file = acme_files(self._place)
        key = await asyncio.to_thread(_account_key, account)
        # Its own for each attempt: one that was given up may still end, and close what is open.
        self.challenges = challenges = Challenges()
        async with asyncio.timeout(ATTEMPT_S_MAX):
            text = await _apart(lambda: self._issue(key, names, challenges))
        if is_due(x509.load_pem_x509_certificates(text)[0], names, self._now()):
            raise IssueError("the authority's certificate does not fit: is the clock of this machine right?")
        await asyncio.to_thread(write_file, file, text)

    def _failed(self, error: Exception) -> None:
        # Of other errors only the name is told: their texts may hold anything.
        why = str(error) if isinstance(error, IssueError | OperatorError) else type(error).__name__
        if isinstance(error, TimeoutError):
            why = f"the authority did not finish in {ATTEMPT_S_MAX:.0f} seconds"
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 10)
        self._not_before = self._clock() + pause_s
        self.trouble = f"the web certificate could not be renewed: {why.removesuffix('.')}"
        log.error("%s; trying again in %.0f h", self.trouble, pause_s / 3_600)


def _issue_of(place: RouterPlace) -> Issue:
    web = place.settings.web

    def issue(account: bytes, names: list[str], challenges: Challenges) -> bytes:
        # Imported by the first attempt, in its own thread: it takes a while, and few routers need it.
        from blindpost.web import issuing

        ca_file = place.folder / web.acme_ca_file if web.acme_ca_file else None
        authority = issuing.Authority(web.acme_directory, web.acme_email, ca_file)
        return issuing.issue(authority, account, names, challenges)

    return issue


def _account_key(file: Path) -> bytes:
    """The key of our account; made once, and kept."""
    if not file.exists():
        make_folder(file.parent)
        write_file(file, new_key())
    return read_file(file)


async def _apart(work: Callable[[], bytes]) -> bytes:
    """Wait for slow work in a thread of its own, which the end of the program does not wait for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def answered(found: bytes | Exception) -> None:
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def run() -> None:
        found: bytes | Exception
        try:
            found = work()
        except Exception as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(answered, found)

    threading.Thread(target=run, name="acme", daemon=True).start()
    return await answer
