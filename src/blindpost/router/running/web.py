"""The router's site: its settings, what it says of the running router, and the port it shares with SMP."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from dataclasses import replace

import blindpost
from blindpost.router.running.renewing import Renewal, acme_files, demand_possible
from blindpost.router.running.settings import RouterPlace, RulesSection
from blindpost.serving.failures import OperatorError
from blindpost.serving.limits import AddressKeys, account_of
from blindpost.serving.listening import listen_at
from blindpost.serving.logs import log
from blindpost.transport.listening import TcpListener
from blindpost.transport.network import TCP, Network
from blindpost.web.certificates import CertificateError, WebCertificate
from blindpost.web.challenges import PROTOCOL
from blindpost.web.connection import Visitor, Visitors
from blindpost.web.doorman import SharedNetwork
from blindpost.web.information import Facts, Information
from blindpost.web.pages import SOURCE_PATH
from blindpost.web.site import Site
from blindpost.wire.client_hello import ClientHello

LOOK_S = 5.0
"""How often the certificate files and the operator's own pages are checked."""


class RouterSite:
    """What browsers get from one router; without a certificate and a plain port, nothing."""

    def __init__(self, place: RouterPlace, fingerprint: bytes) -> None:
        self._place = place
        self._fingerprint = fingerprint
        self._told = ""
        keys = AddressKeys()
        self.visitors = Visitors(lambda host: account_of(keys.of(host)))
        web = place.settings.web
        self._certificate = web_certificate(place)
        self.renewal: Renewal | None = None
        if web.acme:
            demand_possible(place)
            self.renewal = Renewal(place)
            self._take_up()
        self._site = Site(self.facts, place.folder / web.folder if web.folder else None)
        self._plain: TcpListener | None = None

    @property
    def network(self) -> Network:
        """Where the router listens: a port that browsers share, if a certificate is there or on its way."""
        web = self._place.settings.web
        if self._certificate is None and not web.acme and not web.proxies:
            return TCP
        trusted = [ipaddress.ip_network(text) for text in web.proxies]
        return SharedNetwork(self._guest, trusted)

    def _guest(self, hello: ClientHello) -> asyncio.Protocol | None:
        """A browser, or an authority that looks whether a name is ours. The router refuses the rest."""
        context = None
        if self.renewal is not None and hello.protocols == (PROTOCOL,):
            context = self.renewal.challenges.context(hello.server_name)
        elif self._certificate is not None and self._certificate.covers(hello.server_name):
            context = self._certificate.context
        return None if context is None else Visitor(self._site.answer, self.visitors, context)

    async def listen(self) -> int | None:
        """Open the plain port on loopback, if there is one: for a proxy on this machine."""
        port = self._place.settings.web.plain_port
        if self._certificate is not None or self.renewal is not None or port != "off":
            # Packed before anybody can ask for it: a visitor must not make the router's loop wait.
            await asyncio.to_thread(self._site.answer, "GET", SOURCE_PATH)
        if port == "off":
            return None

        async def opened(host: str | None, port: int) -> int:
            self._plain = await TcpListener.listen(
                lambda: Visitor(self._site.answer, self.visitors, None), host, port
            )
            return self._plain.ports[0]

        return await listen_at(opened, "127.0.0.1", port)

    async def look(self) -> None:
        """Pick up a renewed certificate and the operator's changed pages."""
        if self._certificate is not None:
            self._certificate.renew()
        elif self.renewal is not None:
            self._take_up()
        await asyncio.to_thread(self._site.refresh)

    def _take_up(self) -> None:
        """Use the certificate that the authority gave. Without one there is no site, and SMP is served."""
        file = acme_files(self._place)[1]
        if not file.exists():
            return
        try:
            self._certificate = WebCertificate(file, file)
            log.info("the site has a web certificate")
        except CertificateError as error:
            if str(error) != self._told:
                log.error("%s There is no site until a new one is there.", error)
            self._told = str(error)

    def close(self) -> None:
        if self._plain is not None:
            self._plain.stop()
        self.visitors.close()

    def facts(self) -> Facts:
        """What the page says, from the current settings."""
        settings = self._place.settings
        address = settings.router_address(self._fingerprint)
        return Facts(
            settings.address.hosts[0],
            replace(address, password=None).text,
            blindpost.__version__,
            tuple(_policies(settings.rules)),
            Information(**settings.information.model_dump()),
        )


def web_certificate(place: RouterPlace) -> WebCertificate | None:
    """The certificate for browsers, if the settings name one."""
    web = place.settings.web
    if not web.certificate:
        return None
    try:
        return WebCertificate(place.folder / web.certificate, place.folder / web.key)
    except CertificateError as error:
        raise OperatorError(f"{error} Correct web.certificate and web.key, or leave both empty.") from error


def _policies(rules: RulesSection) -> Iterator[tuple[str, str]]:
    """What the rules mean for those who use the router."""
    if not rules.new_queues:
        yield "New queues", "none are created any more; those that exist go on working"
    elif rules.password:
        yield "New queues", "only with the password that the operator gives out"
    else:
        yield "New queues", "anybody may create them"
    kept = rules.message_ttl_s
    yield "Messages", "kept until they are received" if kept == "never" else f"deleted after {_days(kept)}"
    yield "Queues", f"hold up to {rules.quota} messages each"
    if not rules.proxy:
        yield "Private routing", "not offered to other servers"
    elif rules.password:
        yield "Private routing", "for those who know the password"
    else:
        yield "Private routing", "offered to everybody, so that other servers do not see their address"


def _days(seconds: int) -> str:
    days, hours = seconds // 86_400, seconds // 3_600
    period = f"{days} days" if days >= 2 else f"{max(hours, 1)} h"
    return f"{period}, if nobody receives them"
