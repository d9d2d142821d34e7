"""What README and docs tell a reader to type is typed here, in their order, in a separate folder.

New commands are run automatically. If one needs preparation, or contains a placeholder (an address, a key),
say so in `SCENES` or `BEFORE` below; `tests.support.docs.executed` lists what is executed elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.store_logs import Shape, write_files
from blindpost.client.smp import SmpClient
from blindpost.serving.children import free_port
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.text import ub64
from tests.support.docs.documents import ROOT
from tests.support.docs.executed import Place, all_commands, commands_at, place
from tests.support.docs.packages import copy_sources
from tests.support.docs.typing_reader import Reader, see_what_is_installed
from tests.support.router.routers import new_queue
from tests.support.router.smp_server import smp_server_keys

pytestmark = pytest.mark.timeout(900)
KEY = "5a" * 32


def at_home() -> str:
    return f"--host 127.0.0.1 --port {free_port()} --listen 127.0.0.1 --no-qr"


def router(reader: Reader, name: str) -> str:
    """A running router; its address."""
    reader.type(f"blindpost router init {name} {at_home()}")
    reader.type(f"blindpost router start -c {name}")
    return reader.type(f"blindpost router address -c {name}").strip()


def readme(reader: Reader) -> None:
    reader.replace(("--host smp.example.org", at_home()))


def a_router(reader: Reader) -> None:
    reader.replace(
        ("--host smp.example.org", f"{at_home()} --open"),
        ("/media/usb", "usb"),
        ("/backups", "backups"),
        ("--to my-router", "--to restored"),
        ("nc -U", f"{sys.executable} -c {shlex.quote(NC)}"),
    )
    reader.environment["BLINDPOST_ROUTER"] = "my-router"


NC = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
    " s.sendall(sys.stdin.buffer.read()); print(s.makefile().readline())"
)
"""What is asked of nc: not every machine has it."""


def a_reported_queue(reader: Reader) -> None:
    async def made() -> str:
        server = RouterAddress.from_text(reader.type("blindpost router address").strip()).server
        async with await SmpClient.connect(server) as client:
            return ub64((await new_queue(client)).sender_id)

    reader.replace((" ID", f" {asyncio.run(made())}"))


def ca_key_on_a_stick(reader: Reader) -> None:
    (reader.folder / "usb").mkdir()
    shutil.move(reader.folder / "my-router" / "keys" / "ca.key", reader.folder / "usb")


def an_smp_server(reader: Reader) -> None:
    smp_server_keys(reader.folder / "simplex")
    (reader.folder / "simplex" / "smp-server.ini").write_text(
        "[TRANSPORT]\nhost: 127.0.0.1\n[AUTH]\nnew_queues: on\n"
    )
    for name in ("copy", "var"):
        (reader.folder / name).mkdir()
        write_files(reader.folder / name, Shape(20), int(time.time()))
    reader.replace(
        ("--port 5224", f"--port {free_port()} --listen 127.0.0.1 --no-qr"),
        ("/etc/opt/simplex", "simplex"),
        ("/var/opt/simplex", "var"),
        ("/srv/new-router", str(reader.folder / "new-router")),
        ("--from router --to-log ", f"--from {reader.folder / 'new-router'} --to-log {reader.folder}/back-"),
        ("--from one-router --to another", "--from ../new-router --to ../another"),
    )


def another_router(reader: Reader) -> None:
    reader.type(f"blindpost router init ../another {at_home()}")


def a_delivery_service(reader: Reader) -> None:
    port = free_port()
    reader.replace(
        ("--host ds.example.org", f"--host 127.0.0.1 --port {port}"),
        ("=ds.example.org", f"=127.0.0.1:{port}"),
        ("ALICE_KEY", KEY),
        ("BOB_KEY", KEY),
    )


def what_was_printed(reader: Reader) -> None:
    (fingerprint,) = re.findall(r"certificate: (\w{64})", reader.said[0])
    reader.replace(
        ("FINGERPRINT=...", f"FINGERPRINT={fingerprint}"), ("TOKEN=...", f"TOKEN={reader.said[1].strip()}")
    )


def a_notification_router(reader: Reader) -> None:
    """Its editor makes the change that the comment describes."""
    reader.replace(("--host ntf.example.org", f"--host 127.0.0.1 --port {free_port()}"))
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (reader.folder / "apple.p8").write_bytes(pem)
    edits = f's|^key_file = ""|key_file = "{reader.folder}/apple.p8"|; s|^key_id = ""|key_id = "ABCDE12345"|'
    reader.environment["EDITOR"] = f"sed -i {edits!r}"
    reader.replace(("$EDITOR", f"sed -i '{edits}'"))


def a_fleet(reader: Reader) -> None:
    reader.replace(*((f"{name}=smp://...", f"{name}={router(reader, name)}") for name in ("oak", "elm")))


def services(reader: Reader) -> None:
    reader.replace(
        ("--host localhost", at_home()),
        ("examples/", f"{ROOT}/examples/"),
    )


def at_the_page(reader: Reader) -> None:
    (reader.folder / "home").mkdir()
    reader.type(f"blindpost router init home/router {at_home()}")
    reader.type(f"blindpost ntf init home/ntf --host 127.0.0.1 --port {free_port()}")
    reader.replace(
        ("--page-port 8823", "--page-port 0"),
        ("home/ntf", "home/ntf --page-port 0"),
        ("--host smp.example.org", "--page-port 0"),
    )


def at_the_beginning(reader: Reader) -> None:
    copy_sources(reader.folder)
    reader.replace(
        ("--port 5223", f"--port {free_port()} --page-port 0"),
    )


def a_journal(reader: Reader) -> None:
    reader.type(f"blindpost router init my-router {at_home()}")
    (reader.folder / "journal").mkdir()
    reader.replace(("/var/lib/blindpost/state", "state"), ("seal FOLDER", "seal journal"))


SCENES: dict[str, Callable[[Reader], None]] = {
    "README.md": readme,
    "docs/canary.md": a_fleet,
    "docs/chat.md": services,
    "docs/client-services.md": services,
    "docs/delivery-service.md": a_delivery_service,
    "docs/getting-started.md": at_the_beginning,
    "docs/journal.md": a_journal,
    "docs/moving-in.md": an_smp_server,
    "docs/notifications.md": a_notification_router,
    "docs/page.md": at_the_page,
    "docs/router.md": a_router,
}
"""What a document takes for granted."""

BEFORE: dict[str, Callable[[Reader], None]] = {
    "bp/bin/pip install .": lambda reader: see_what_is_installed(reader.folder / "bp"),
    "blindpost router queues show ID": a_reported_queue,
    "blindpost router rotate-cert --ca-key /media/usb/ca.key": ca_key_on_a_stick,
    "blindpost router export --from router --to-log smp-server-store.log": Reader.end_servers,
    "blindpost router import --from one-router --to another": another_router,
    "export BLINDPOST_DS_SERVER=ds.example.org BLINDPOST_DS_FINGERPRINT=... BLINDPOST_DS_TOKEN=...": (
        what_was_printed
    ),
}
"""What a reader does before typing this, as the text around it says."""


@pytest.mark.parametrize(
    "document", list(dict.fromkeys(command.document for command in commands_at(Place.TYPED)))
)
def test_every_command_works(document: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        if document in SCENES:
            SCENES[document](reader)
        for command in commands_at(Place.TYPED, document):
            if command.text in BEFORE:
                BEFORE[command.text](reader)
            reader.said.append(reader.type(command.text))


def test_every_command_is_run_somewhere() -> None:
    """By a test file that asks for all commands of its place, or by CI, which lists them line by line."""
    for command in all_commands():
        file = ROOT / place(command).value
        if place(command) is Place.CI:
            assert command.text in file.read_text().splitlines()
        else:
            assert f"commands_at(Place.{place(command).name}" in file.read_text()


def test_every_preparation_belongs_to_a_document() -> None:
    typed = commands_at(Place.TYPED)
    assert SCENES.keys() <= {command.document for command in typed}
    assert BEFORE.keys() <= {command.text for command in typed}
