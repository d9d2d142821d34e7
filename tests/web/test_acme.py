"""Certificates that the router gets itself: an authority, the proof on the port, failures and pauses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from blindpost.router.running import renewing
from blindpost.router.running.checking import checks_of
from blindpost.router.running.renewing import Renewal, acme_files, is_due, public_names
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.template import config_text
from blindpost.router.running.web import RouterSite
from blindpost.serving.checking import DoubtError
from blindpost.serving.failures import OperatorError
from blindpost.transport.ends import open_session
from blindpost.web.challenges import ACME_IDENTIFIER, Challenges, IssueError, new_key
from blindpost.wire.smp.commands import PING
from blindpost.wire.smp.responses import PONG
from blindpost.wire.text import b64
from tests.support.serving.commands import edit, init, started
from tests.support.transport.sessions import HOST, Recorder, serving, smp_client, smp_router
from tests.support.web.authority import authority, free_port, needs_acme, needs_pebble
from tests.support.web.sites import browse, write_certificate

NAME, SECOND = "smp.example.test", "smp2.example.test"
GET = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()

REFUSED = r"(?i)no.application.protocol"


def with_acme(folder: Path, directory: str = "https://localhost:9/dir", port: int = 0) -> RouterPlace:
    """The settings of a router, in which nothing else may be wrong."""
    if not folder.exists():
        folder.mkdir()
        (folder / "router.toml").write_text(config_text(["localhost"], 0, ["127.0.0.1"], b64(bytes(32))))
    edit(folder, 'hosts = ["localhost"]', f'hosts = ["{NAME}", "127.0.0.1"]')
    edit(folder, "ports = [0]", f"ports = [{port}]")
    edit(folder, "acme = false", "acme = true")
    edit(folder, "https://acme-v02.api.letsencrypt.org/directory", directory)
    return RouterPlace.read(folder / "router.toml")


def pem(folder: Path, *names: str) -> bytes:
    chain, key = write_certificate(folder, *names)
    return key.read_bytes() + chain.read_bytes()


@needs_acme
@needs_pebble
async def test_a_real_authority_gives_and_renews_the_certificate_of_a_running_router(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "router"
    async with authority(tmp_path / "authority", port) as asked:
        init(folder)
        place = with_acme(folder, asked.directory, port)
        edit(folder, 'acme_ca_file = ""', f'acme_ca_file = "{asked.ca_file}"')
        edit(folder, f'"{NAME}", "127.0.0.1"', f'"{NAME}", "{SECOND}", "127.0.0.1"')
        browser = await asked.trusting()

        async def serial(name: str = NAME) -> int:
            """What a browser that trusts the authority is shown, with the page."""
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=browser, server_hostname=name
            )
            writer.write(GET)
            assert b"200" in (await reader.readuntil(b"</html>")).splitlines()[0]
            shown = writer.get_extra_info("ssl_object").getpeercert(True)
            writer.close()
            return x509.load_der_x509_certificate(shown).serial_number

        async with started(folder) as router:
            async with await router.connect() as client:
                assert isinstance(await client.send(PING(), b""), PONG)
            await router.told(b"the site has a web certificate")
            first = await serial()
            assert await serial(SECOND) == first
            assert (await router.ask("status"))["health"] == "everything works"
            await router.end()
            for file in acme_files(place):
                assert file.stat().st_mode & 0o777 == 0o600

            account = acme_files(place)[0].read_bytes()
            acme_files(place)[1].write_bytes(pem(tmp_path / "other", "other.example.test"))
            await router.start()
            await router.told(b"a new web certificate is in use")
            assert await serial() != first
            assert acme_files(place)[0].read_bytes() == account
            assert await router.end() == 0


@needs_acme
async def test_a_router_whose_authority_is_away_serves_and_says_so(tmp_path: Path) -> None:
    init(tmp_path / "router")
    with_acme(tmp_path / "router", f"https://localhost:{free_port()}/dir")
    async with started(tmp_path / "router") as router, await router.connect() as client:
        await router.told(b"trying again in 1 h")
        assert isinstance(await client.send(PING(), b""), PONG)
        await router.told(b"needs attention: the web certificate")
        status = await router.ask("status")
        assert status["ready"]
        assert re.fullmatch(
            r"the web certificate could not be renewed: the authority cannot be reached \(.*refused.*\)",
            status["health"],
        )
        assert status["failed_work"] == {}


@needs_acme
async def test_an_authority_cannot_send_the_router_to_another_host(tmp_path: Path) -> None:
    from blindpost.web.issuing import Authority, issue

    chain, key = write_certificate(tmp_path, "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, key)
    came, lead = [0], [b""]

    async def directory(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(lead[0])
        writer.close()

    def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came[0] += 1
        writer.close()

    async with (
        await asyncio.start_server(directory, "localhost", 0, ssl=tls) as asked,
        await asyncio.start_server(inside, "localhost", 0) as other,
    ):
        ports = [one.sockets[0].getsockname()[1] for one in (asked, other)]
        who = Authority(f"https://localhost:{ports[0]}/dir", ca_file=chain)
        urls = json.dumps(dict.fromkeys(("newNonce", "newAccount"), f"https://localhost:{ports[1]}/"))
        away = f"Location: http://localhost:{ports[1]}/\r\nContent-Length: 0"
        for lead[0] in (
            f"HTTP/1.1 302 Found\r\n{away}\r\n\r\n".encode(),
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(urls)}\r\n\r\n{urls}".encode(),
        ):
            with pytest.raises(IssueError, match="No connection adapters"):
                await asyncio.to_thread(issue, who, new_key(), [NAME], Challenges())
        lead[0] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
        with pytest.raises(IssueError, match="does not answer as ACME asks"):
            await asyncio.to_thread(issue, who, new_key(), [NAME], Challenges())
    assert came == [0]


@needs_acme
async def test_an_authority_sees_the_proof_and_nothing_else(tmp_path: Path) -> None:
    place = with_acme(tmp_path / "router")
    acme_files(place)[1].parent.mkdir()
    acme_files(place)[1].write_bytes(pem(tmp_path / "web", NAME))
    site = RouterSite(place, bytes(32))
    assert site.renewal is not None
    proofs, router = site.renewal.challenges, Recorder(echo=True)
    async with serving(smp_router(), router, site.network) as port:
        with pytest.raises(ssl.SSLError, match=REFUSED):
            await browse(port, b"", name=NAME, protocols=("acme-tls/1",))
        proofs.open(NAME, "token.thumbprint")
        reader, writer = await browse(port, GET, name=NAME, protocols=("acme-tls/1",))
        seen = writer.get_extra_info("ssl_object")
        assert seen.selected_alpn_protocol() == "acme-tls/1"
        shown = x509.load_der_x509_certificate(seen.getpeercert(True)).extensions
        held = shown.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(held) == [x509.DNSName(NAME)]
        proof = shown.get_extension_for_oid(ACME_IDENTIFIER)
        assert proof.critical
        assert isinstance(proof.value, x509.UnrecognizedExtension)
        assert proof.value.value == b"\x04\x20" + hashlib.sha256(b"token.thumbprint").digest()
        assert await reader.read() == b""
        writer.close()

        client = Recorder()
        session = await open_session(smp_client(), client, HOST, port)
        session.send(b"hello")
        await client.until("payloads", 1)
        session.close()
        _, writer = await browse(port, b"", name=NAME, protocols=("acme-tls/1", "smp/1"))
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "smp/1"
        writer.close()
        for name in ("elsewhere.example", f"www.{NAME}"):
            with pytest.raises(ssl.SSLError, match=REFUSED):
                await browse(port, b"", name=name, protocols=("acme-tls/1",))
        proofs.close()
        with pytest.raises(ssl.SSLError, match=REFUSED):
            await browse(port, b"", name=NAME, protocols=("acme-tls/1",))
        assert not site.visitors.here


async def test_failures_are_told_and_tried_again_hours_later(tmp_path: Path) -> None:
    place = with_acme(tmp_path / "router")
    clock, asked, answers = [0.0], list[float](), list[bytes | Exception]()

    def issue(account: bytes, names: list[str], challenges: Challenges) -> bytes:
        assert account == acme_files(place)[0].read_bytes()
        assert names == [NAME]
        asked.append(clock[0] / 3_600)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    renewal = Renewal(place, issue, lambda: clock[0])
    good, wrong = pem(tmp_path / "good", NAME), pem(tmp_path / "wrong", "other.example")
    answers += [*[IssueError("it is asleep")] * 2, RuntimeError("secret"), wrong, *[IssueError("no")] * 2]
    sentences = set()
    for _ in range(28 * 30):
        await renewal.look()
        sentences.add(renewal.trouble)
        clock[0] += 120
    assert asked == [0, 1, 3, 7, 15, 27]
    assert "the web certificate could not be renewed: it is asleep" in sentences
    assert "the web certificate could not be renewed: RuntimeError" in sentences
    assert not acme_files(place)[1].exists()

    answers.append(good)
    for _ in range(60 * 30):
        await renewal.look()
        clock[0] += 120
    assert len(asked) == 7
    assert renewal.trouble is None
    assert acme_files(place)[1].read_bytes() == good
    assert acme_files(place)[1].stat().st_mode & 0o777 == 0o600


async def test_a_slow_authority_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = with_acme(tmp_path / "router")
    monkeypatch.setattr(renewing, "ATTEMPT_S_MAX", 0.05)
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()

    def issue(account: bytes, names: list[str], challenges: Challenges) -> bytes:
        future = asyncio.run_coroutine_threadsafe(waiting.wait(), loop)
        future.result(10)
        return b""

    renewal = Renewal(place, issue)
    await renewal.look()
    assert renewal.trouble is not None
    assert "did not finish" in renewal.trouble
    waiting.set()
    await asyncio.sleep(0)


def test_a_certificate_is_due_in_its_last_third_or_without_a_name(tmp_path: Path) -> None:
    leaf = x509.load_pem_x509_certificates(pem(tmp_path, NAME))[0]
    begin, whole = leaf.not_valid_before_utc, leaf.not_valid_after_utc - leaf.not_valid_before_utc
    assert not is_due(leaf, [NAME], begin + whole * 2 / 3 - timedelta(seconds=1))
    assert is_due(leaf, [NAME], begin + whole * 2 / 3)
    assert is_due(leaf, [NAME], leaf.not_valid_after_utc + timedelta(days=900))
    assert is_due(leaf, [NAME, "smp2.example.test"], datetime.now(UTC))
    assert public_names([NAME, "192.0.2.1", "2001:db8::1", "x" * 56 + ".onion"]) == [NAME]


@needs_acme
async def test_the_check_knows_what_an_authority_needs(tmp_path: Path) -> None:
    place = with_acme(tmp_path / "router")

    async def told() -> str:
        fresh = RouterPlace.read(place.file)
        return await checks_of(fresh, False).tries["web certificate"]()

    with pytest.raises(DoubtError, match="no 443"):
        await told()
    edit(place.folder, "ports = [0]", "ports = [0, 443]")
    with pytest.raises(DoubtError, match="none yet"):
        await told()
    file = acme_files(place)[1]
    file.parent.mkdir()
    file.write_text("not a certificate")
    with pytest.raises(DoubtError, match="damaged"):
        await told()
    assert RouterSite(place, bytes(32)).renewal is not None, "a damaged file stops no router"
    file.write_bytes(pem(tmp_path / "good", NAME))
    assert "renewed by the router" in await told()
    file.write_bytes(pem(tmp_path / "other", "other.example"))
    with pytest.raises(DoubtError, match="not renewed"):
        await told()

    edit(place.folder, f'"{NAME}", "127.0.0.1"', '"127.0.0.1"')
    with pytest.raises(OperatorError, match="DNS name"):
        await told()
    edit(place.folder, 'certificate = ""\nkey = ""', 'certificate = "a"\nkey = "b"')
    with pytest.raises(OperatorError, match="either acme or files"):
        RouterPlace.read(place.file)
