"""A delivery service with a certificate that its operator brought."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed448
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from blindpost.ds.certificate import fingerprint, make_certificate
from blindpost.ds.process import DsService, own_pair
from blindpost.ds.settings import DsPlace
from blindpost.serving.failures import OperatorError
from tests.support.ds.delivery import ALICE
from tests.support.ds.process import StartedDs, configure, ds_in_process
from tests.support.serving.commands import run

ONE_FILE = '[identity]\ncertificate = "own.pem"\nkey = "own.pem"\n\n[auth]'


async def reached(ds: StartedDs) -> None:
    """Over TLS and over QUIC."""
    for quic in (False, True):
        async with await ds.client(quic=quic) as client:
            await client.enqueue(ALICE, b"sent")
            assert await client.fetch(ALICE) == (b"sent",)


@pytest.mark.parametrize("key_first", [False, True])
async def test_one_file_with_certificate_and_key(tmp_path: Path, key_first: bool) -> None:
    folder = tmp_path / "ds"

    def bring() -> bytes:
        certificate, key = make_certificate("127.0.0.1", 1_700_000_000)
        (folder / "own.pem").write_bytes(key + certificate if key_first else certificate + key)
        return fingerprint(certificate)

    async with ds_in_process(folder) as ds:
        configure(folder, "[auth]", ONE_FILE)
        ds.fingerprint = bring()
        await ds.start()
        await reached(ds)
        ds.fingerprint = bring()
        ds.hang_up()
        await ds.told(b"reloaded certificates")
        await reached(ds)
        before = (folder / "own.pem").read_bytes()
        told = await asyncio.to_thread(run, "ds", "rotate-cert", "-c", folder, code=1)
        assert "was not made by `blindpost ds`. Nothing was changed" in told.stderr
        assert (folder / "own.pem").read_bytes() == before
        await asyncio.to_thread(run, "ds", "backup", tmp_path / "copy", "-c", folder)
        assert (tmp_path / "copy" / "own.pem").read_bytes() == before


def _issued_elsewhere() -> tuple[bytes, bytes]:
    """From an authority, with a key of a kind that QUIC does not know."""
    key, now = ed448.Ed448PrivateKey.generate(), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "An authority")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("ds.example")]), critical=False)
        .sign(key, None)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), secret


def test_what_is_wrong_with_the_files_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    run("ds", "init", folder, "--host", "127.0.0.1")
    place = DsPlace.read(folder)
    certificate, key = place.certificate.read_bytes(), place.key.read_bytes()

    def refused(certificate: bytes, key: bytes) -> str:
        place.certificate.write_bytes(certificate)
        place.key.write_bytes(key)
        with pytest.raises(OperatorError) as told:
            own_pair(place)
        return str(told.value)

    sealed = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hello")
    )
    assert "nobody to ask" in refused(certificate, sealed), "and nobody is asked on the terminal"
    assert "not the first certificate's" in refused(make_certificate("x", 0)[0], key)
    assert "QUIC cannot use keys of this kind" in refused(*_issued_elsewhere())
    place.key.unlink()
    with pytest.raises(OperatorError, match=r"ds\.key: the service's certificate or its key is missing"):
        own_pair(place)


@pytest.mark.parametrize("text", [b"", b"nonsense", _issued_elsewhere()[0]])
def test_only_a_certificate_of_our_own_is_replaced(tmp_path: Path, text: bytes) -> None:
    folder = tmp_path / "ds"
    run("ds", "init", folder, "--host", "127.0.0.1")
    key = (folder / "ds.key").read_bytes()
    (folder / "ds.crt").write_bytes(text)
    told = run("ds", "rotate-cert", "-c", folder, code=1).stderr
    assert "Nothing was changed" in told
    assert ((folder / "ds.crt").read_bytes(), (folder / "ds.key").read_bytes()) == (text, key)


async def test_a_file_that_is_damaged_later_changes_nothing_until_a_reload(tmp_path: Path) -> None:
    run("ds", "init", tmp_path, "--host", "127.0.0.1")
    place = DsPlace.read(tmp_path)
    service = await DsService.open(place, 10)
    try:
        before = list(service.certificates())
        place.certificate.write_bytes(b"being written")
        assert service.certificates() == tuple(before), "health is watched all the time"
        with pytest.raises(OperatorError):
            service.reload(place)
        assert service.certificates() == tuple(before)
    finally:
        await service.close()
