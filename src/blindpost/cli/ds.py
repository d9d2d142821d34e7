"""`blindpost ds`: set up, start and use a delivery service.

What only one command needs is imported by that command, so that the others answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from blindpost.cli.options import (
    BackupFolder,
    BackupTarget,
    ForceOption,
    RestoreTo,
    SetOption,
    TopOption,
    checked_host,
    config_option,
)
from blindpost.cli.output import (
    HERE,
    JsonOption,
    hand_over,
    new_folder,
    require_empty,
    say,
    show_holders,
    show_status,
    tell_backup,
    tell_restored,
    told_reload,
    upgraded,
    with_set,
)
from blindpost.ds.auth import token_digest
from blindpost.ds.model import DS_PORT, KEY_SIZE, PAYLOAD_BYTES_MAX
from blindpost.ds.settings import CONFIG_NAME, DsPlace, change_tokens
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import PUBLIC, make_folder, read_file, write_file, write_pair
from blindpost.serving.journal import JOURNAL_TEMPLATE, LAB_TEMPLATE
from blindpost.serving.sections import CONTROL_TEMPLATE, METRICS_TEMPLATE

if TYPE_CHECKING:
    from blindpost.ds.client import DsClient

_T = TypeVar("_T")
_PLACE = re.compile(r"(?:\[(?P<inside>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")
_PORT_MAX = 0xFFFF

app = typer.Typer(
    help="Run or use a delivery service for MLS groups.",
    no_args_is_help=True,
    epilog="First steps: `blindpost ds init my-ds --host ds.example.org`, `blindpost ds token KEY -c my-ds`, "
    "then `blindpost ds start -c my-ds`.",
)

ConfigOption = Annotated[Path, config_option("service", "BLINDPOST_DS")]
KeyArgument = Annotated[str, typer.Argument(help="An Ed25519 public key, 64 hexadecimal digits.")]
ServerOption = Annotated[
    str, typer.Option("--server", "-s", envvar="BLINDPOST_DS_SERVER", help="HOST, HOST:PORT or [IPV6]:PORT.")
]
TokenOption = Annotated[
    str, typer.Option(envvar="BLINDPOST_DS_TOKEN", help="The access token; better given by the variable.")
]
FingerprintOption = Annotated[
    str, typer.Option(envvar="BLINDPOST_DS_FINGERPRINT", help="SHA-256 of the certificate, hexadecimal.")
]
QuicOption = Annotated[bool, typer.Option("--quic/--tls", help="Over QUIC, or over TLS on TCP.")]
ChannelOption = Annotated[str, typer.Option(help="The channel id, hexadecimal; empty for the default one.")]

_CONFIG = """\
# A delivery service. Every setting that is missing has its default; see docs/delivery-service.md.

[listen]
address = "*"
tls_port = {port}
quic_port = {port}

[auth]
# "tokens": only those whom `blindpost ds token` gave one. "open": everybody, also to drain every queue.
mode = "tokens"

[store]
# "full" survives power loss, "os" is faster and survives kill -9.
durability = "full"
# With true on two machines that share this database, one of them serves and the other waits; it takes over
# when the first ends, or was silent for so many seconds. See docs/standby.md.
standby = false
takeover_s = 10

""" + (
    METRICS_TEMPLATE.format(port=9466)
    + CONTROL_TEMPLATE
    + JOURNAL_TEMPLATE.format(default="the name of this folder")
    + LAB_TEMPLATE.format(names="recipient keys", about="their queues")
)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Failures of the service's parts become messages for a person."""
    from blindpost.ds.bincode import ImportFileError
    from blindpost.ds.client import DsError
    from blindpost.engine.loop import StoreFailedError

    try:
        yield
    except (ImportFileError, StoreFailedError) as error:
        raise OperatorError(str(error)) from error
    except DsError as error:
        raise OperatorError(f"the delivery service: {error}.") from error


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything the service keeps.")],
    host: Annotated[str, typer.Option(help="Where callers reach the service.")],
    port: Annotated[
        int,
        typer.Option(min=0, max=65_535, help="The port callers connect to; 0 lets the system choose one."),
    ] = DS_PORT,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a certificate, an empty store and a configuration; print the certificate's fingerprint."""
    from blindpost.ds.certificate import fingerprint, make_certificate
    from blindpost.ds.process import open_embedded_store

    require_empty(folder, "service")
    host = checked_host(host)
    text = with_set(_CONFIG.format(port=port), settings).encode()
    DsPlace.parse(text, folder / CONFIG_NAME)
    with new_folder(folder, "service"):
        write_file(folder / CONFIG_NAME, text)
        place = DsPlace.read(folder)
        certificate, key = make_certificate(host, int(time.time()))
        write_file(place.key, key)
        write_file(place.certificate, certificate, PUBLIC)
        write_file(place.tokens, b"# SHA-256 of a token, identity key\n")
        open_embedded_store(place).close()
    found = fingerprint(certificate).hex()
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "fingerprint": found, "port": port}))
    else:
        say(f"The service is set up in {folder}.\nFingerprint of its certificate: {found}")


@app.command()
def token(identity_key: KeyArgument, config: ConfigOption = HERE) -> None:
    """Make an access token for an identity and print it: it is shown once, the service keeps its hash.

    A running service takes it from then on.
    """
    place, identity = DsPlace.read(config), _bytes(identity_key, "the key", KEY_SIZE)
    made = secrets.token_urlsafe(32)
    line = f"{token_digest(made.encode()).hex()} {identity.hex()}\n"
    change_tokens(place.tokens, lambda before: before + line)
    typer.echo(made)
    told_reload(place.control)


@app.command()
def revoke(
    identity_key: KeyArgument,
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Revoke all access tokens of an identity; a running service refuses them at once."""
    from blindpost.ds.settings import without_identity

    place, identity = DsPlace.read(config), _bytes(identity_key, "the key", KEY_SIZE)
    count = 0

    def without(before: str) -> str:
        nonlocal count
        after, count = without_identity(before, identity)
        if not count:
            raise OperatorError(f"{place.tokens}: this identity has no token.")
        return after

    change_tokens(place.tokens, without)
    in_use = told_reload(place.control)
    if as_json:
        typer.echo(json.dumps({"revoked": count, "in_use": in_use}))
    else:
        say(f"Revoked {count} tokens{'; the running service refuses them' if in_use else ''}.")


@app.command("rotate-cert")
def rotate_cert(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Make a new key and certificate for the same host; a running service uses it for new connections.

    Callers who compare the fingerprint must be told the new one, which is printed. A certificate from an
    authority is renewed there; `kill -HUP` makes the service use it.
    """
    from blindpost.ds.certificate import ForeignCertificateError, fingerprint, host_of, make_certificate

    place = DsPlace.read(config)
    try:
        host = host_of(read_file(place.certificate))
    except ForeignCertificateError as error:
        raise OperatorError(
            f"{place.certificate}: {error}. Nothing was changed: renew it where it comes from."
        ) from error
    certificate, key = make_certificate(host, int(time.time()))
    write_pair(place.key, key, place.certificate, certificate, PUBLIC)
    in_use = told_reload(place.control)
    found = fingerprint(certificate).hex()
    if as_json:
        typer.echo(json.dumps({"fingerprint": found, "in_use": in_use}))
    else:
        say(f"Fingerprint of the new certificate: {found}")
        say("It is in use for new connections." if in_use else "It will be used at the next start.")


@app.command()
def backup(folder: BackupTarget, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Copy store, configuration, certificate and tokens to a new folder, while the service runs or not."""
    from blindpost.ds.backup import back_up

    place, target = DsPlace.read(config), folder.absolute()
    tell_backup(lambda: back_up(place, target), folder, (), as_json=as_json)


@app.command()
def restore(
    backup_folder: BackupFolder, to: RestoreTo, force: ForceOption = False, as_json: JsonOption = False
) -> None:
    """Set up a delivery service from a backup, while none runs in that folder."""
    from blindpost.ds.backup import restore as restored

    source, target = backup_folder.absolute(), to.absolute()
    tell_restored(lambda: restored(source, target, force=force), to, "ds", as_json=as_json)


@app.command()
def start(config: ConfigOption = HERE) -> None:
    """Run the service until SIGTERM or SIGINT; what it has accepted is answered first.

    SIGHUP reloads tokens, certificate and the settings that need no restart.
    """
    from blindpost.ds.process import DsService
    from blindpost.serving.process import serve

    serve(DsService, DsPlace.read(config))


@app.command()
def check(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Check everything that can be checked before a start, changing nothing; exit code 1 if it would fail."""
    from blindpost.cli.checking import tell_checks
    from blindpost.ds.checking import checks_of

    tell_checks(DsPlace, checks_of, config, as_json=as_json)


@app.command()
def handover(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Give the database to the standby that waits for it, and wait in its place."""
    hand_over(DsPlace.read(config), as_json=as_json)


@app.command()
def upgrade(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Replace the running program by the installed one, on the same ports; clients reconnect once."""
    upgraded(DsPlace.read(config), as_json=as_json)


@app.command()
def status(config: ConfigOption = HERE, top: TopOption = False, as_json: JsonOption = False) -> None:
    """Show what a running service does, in numbers."""
    place = DsPlace.read(config)
    if top:
        show_holders(place, "status", as_json=as_json)
    else:
        show_status(place, as_json=as_json)


@app.command()
def send(
    recipient_key: KeyArgument,
    server: ServerOption,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="What to send; else standard input.")
    ] = None,
    channel: ChannelOption = "",
    token: TokenOption = "",
    fingerprint: FingerprintOption = "",
    quic: QuicOption = False,
) -> None:
    """Store one payload for a recipient; it is durable when the command succeeds."""
    key, channel_id = _bytes(recipient_key, "the key", KEY_SIZE), _bytes(channel, "the channel id")
    with contextlib.nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as given:
        payload = given.read(PAYLOAD_BYTES_MAX + 1)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise OperatorError(
            f"the payload is larger than {PAYLOAD_BYTES_MAX:,} bytes, the most that a service takes."
        )

    async def work() -> None:
        async with await _connect(server, token, fingerprint, quic) as client:
            await client.enqueue(key, payload, channel_id)

    _run(work())
    say(f"Stored {len(payload)} bytes.")


@app.command()
def receive(
    recipient_key: KeyArgument,
    server: ServerOption,
    folder: Annotated[
        Path | None, typer.Option(file_okay=False, help="A file for each payload; else standard output.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds to wait for the first one.")] = 0,
    channel: ChannelOption = "",
    token: TokenOption = "",
    fingerprint: FingerprintOption = "",
    quic: QuicOption = False,
) -> None:
    """Receive everything that waits. A payload leaves the service once it is written here."""
    key, channel_id = _bytes(recipient_key, "the key", KEY_SIZE), _bytes(channel, "the channel id")
    if folder is not None:
        make_folder(folder)

    async def work() -> int:
        count, timeout_s = 0, wait
        async with await _connect(server, token, fingerprint, quic) as client:
            while found := await client.lease(key, channel_id, timeout_s=timeout_s):
                for delivery in found:
                    _put(delivery.payload, None if folder is None else folder / delivery.id.hex())
                    await client.ack(key, (delivery.id,), channel_id)
                    count += 1
                timeout_s = 0.0
        return count

    count = _run(work())
    typer.echo(f"Received {count} payloads.", err=True)


def _put(payload: bytes, file: Path | None) -> None:
    if file is not None:
        write_file(file, payload)
    else:
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A deliveries.bin, V2 or V1.")],
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Import the queues of a bincode file into a new, stopped service: all of them, or none.

    The file is kept as it is.
    """
    from blindpost.ds.moving import import_file
    from blindpost.ds.process import open_store

    place = DsPlace.read(config)

    async def work() -> tuple[int, int, int]:
        with contextlib.closing(await open_store(place)) as store, _progress("importing") as progress:
            return await import_file(file, store, progress)

    with place.locked():
        version, queues, payloads = _run(work())
    if as_json:
        typer.echo(json.dumps({"version": version, "queues": queues, "payloads": payloads}))
    else:
        say(f"Imported {payloads} payloads in {queues} queues from a V{version} file, which was kept.")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, whole or not at all.")],
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Write all queues of a stopped service to a bincode V2 file. Key packages are not part of it."""
    from blindpost.ds.moving import export_file
    from blindpost.ds.process import open_store

    place = DsPlace.read(config)
    if file.exists():
        raise OperatorError(f"{file}: this exists already. Name a new file.")

    async def work() -> tuple[int, int]:
        with contextlib.closing(await open_store(place)) as store, _progress("exporting") as progress:
            return await export_file(file.absolute(), store, progress)

    with place.locked():
        queues, payloads = _run(work())
    if as_json:
        typer.echo(json.dumps({"queues": queues, "payloads": payloads}))
    else:
        say(f"Exported {payloads} payloads in {queues} queues to {file}.")


@contextlib.contextmanager
def _progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a person who watches."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(doing)
        yield lambda done, total: bar.update(task, completed=done, total=total)


async def _connect(server: str, token: str, fingerprint: str, quic: bool) -> DsClient:
    from blindpost.ds.client import DsClient

    host, port = place_of(server)
    pinned = _bytes(fingerprint, "the fingerprint", 32) if fingerprint else None
    return await DsClient.connect(host, port, token=token.encode(), fingerprint=pinned, quic=quic)


def place_of(server: str) -> tuple[str, int]:
    """Host and port of a service. An IPv6 address is in brackets, or has no port."""
    found = _PLACE.fullmatch(f"[{server}]" if _is_ipv6(server) else server)
    if found is not None and (found["host"] or _is_ipv6(found["inside"])):
        port = int(found["port"] or DS_PORT)
        if 0 < port <= _PORT_MAX:
            return found["host"] or found["inside"], port
    raise OperatorError(f"--server: HOST, HOST:PORT or [IPV6]:PORT expected, not {server!r}.")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    with telling():
        return asyncio.run(work)


def _bytes(text: str, what: str, size: int | None = None) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError as error:
        raise OperatorError(f"{what}: hexadecimal digits expected.") from error
    if size is not None and len(found) != size:
        raise OperatorError(f"{what}: {size * 2} hexadecimal digits expected.")
    return found
