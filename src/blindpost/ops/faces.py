"""What a server is called and how users reach it, from its configuration: known before it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blindpost.crypto.chains import fingerprint
from blindpost.ops.model import Address, Face
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.identity import Identity
from blindpost.serving.toml_text import read_toml
from blindpost.wire.addresses import RouterAddress


def face_of(word: str, folder: Path) -> Face:
    """The face of the server in a folder; its folder's name where the configuration cannot be read."""
    try:
        return _FACES[word](folder)
    except OperatorError:
        return Face(folder.name)  # the server itself says what is wrong with its file


def _router(folder: Path) -> Face:
    from blindpost.router.running.settings import RouterPlace

    place = RouterPlace.read(folder)
    address = place.settings.router_address(_identity(place.fingerprint, Identity(place.keys)))
    return Face(_named(address), _shown(address), place.schema)


def _ntf(folder: Path) -> Face:
    from blindpost.ntf.settings import NtfPlace

    place = NtfPlace.read(folder)
    address = place.settings.router_address(_identity(place.fingerprint, Identity(place.keys, "ntf")))
    return Face(_named(address), _shown(address), place.schema)


def _ds(folder: Path) -> Face:
    """A delivery service is known by its certificate, which names its host."""
    from cryptography import x509

    from blindpost.ds.settings import DsPlace

    place = DsPlace.read(folder)
    try:
        (certificate,) = x509.load_pem_x509_certificates(read_file(place.certificate))[:1]
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [
            *named.get_values_for_type(x509.DNSName),
            *map(str, named.get_values_for_type(x509.IPAddress)),
        ]
    except (ValueError, x509.ExtensionNotFound):
        hosts = []
    return Face(hosts[0] if hosts else folder.name, schema=place.schema)


def _canary(folder: Path) -> Face:
    """A canary is known by the routers between which it sings."""
    try:
        routers = read_toml(read_file(folder / "canary.toml").decode()).get("routers")
    except ValueError:
        routers = None
    names = list(map(str, routers)) if isinstance(routers, dict) else []
    return Face(" \N{LEFT RIGHT ARROW} ".join(names) or folder.name)


def _identity(named: bytes | None, identity: Identity) -> bytes:
    """The fingerprint in the address; no private key is read for it."""
    return named if named is not None else fingerprint(identity.authority())


def _named(address: RouterAddress) -> str:
    """The first host, with a port that is not the usual one."""
    server = address.server
    return f"{server.hosts[0].text}:{server.port}" if server.port else server.hosts[0].text


def _shown(address: RouterAddress) -> Address:
    return Address(replace(address, password=None).text, address.text)


_FACES = {"router": _router, "ntf": _ntf, "ds": _ds, "canary": _canary}
