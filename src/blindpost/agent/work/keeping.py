"""Events that a program must act on, as bytes in the store and back.

Messages and receipts are not among them: they come again until they are acknowledged. Neither is what tells
how things stand, such as `Up`, `Sent` or `SendDelayed`.
"""

from __future__ import annotations

from collections.abc import Callable

from blindpost.agent.connection import Confirmation, Connection, ContactRequest, CreatedLink
from blindpost.agent.errors import (
    AgentError,
    BrokerCode,
    BrokerError,
    CommandCode,
    CommandError,
    ConnectionCode,
    ConnError,
    CriticalError,
    InternalError,
    ProtocolCode,
    ProtocolError,
    ProxyError,
    SmpError,
)
from blindpost.agent.events import (
    ConfirmationReceived,
    Connected,
    ConnEvent,
    ContactRequested,
    Event,
    Failed,
    InfoReceived,
    Joined,
    LinkCreated,
    RatchetSync,
    SendFailed,
    SendsFailed,
)
from blindpost.agent.failures import Kind
from blindpost.agent.model import ConnId, SyncState
from blindpost.agent.notifications.errors import NtfError
from blindpost.client.errors import ProxyFailedError, RefusedError
from blindpost.transport.errors import ConnectError
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.errors import WireError
from blindpost.wire.links.full import full_link_from_text
from blindpost.wire.links.short import short_link_from_text
from blindpost.wire.primitives import Reader, Writer, decode_whole
from blindpost.wire.smp.error_codec import read_error, write_error

Handle = Callable[[ConnId], Connection]


def dump_event(event: Event) -> bytes | None:
    """None: the event is not kept."""
    writer = Writer()
    match event:
        case ConnEvent():
            _text(writer, event.conn.id)
        case _:
            return None
    match event:
        case Connected(_, pq):
            writer.flag(pq)
        case InfoReceived(_, info, pq):
            writer.large(info).flag(pq)
        case Joined(_, secured):
            writer.flag(secured)
        case LinkCreated(_, link):
            writer.large(link.full.text.encode())
            writer.opt(None if link.short is None else link.short.text.encode(), Writer.large)
        case ConfirmationReceived(_, shown):
            _text(writer, shown.id)
            writer.large(shown.info).flag(shown.pq)
            _write_servers(writer, shown.servers)
        case ContactRequested(_, request):
            _text(writer, request.id)
            writer.large(request.info).flag(request.pq)
            _write_servers(writer, request.servers)
            _text(writer, "" if request.accepted is None else request.accepted.id)
        case SendFailed(_, msg_id, error):
            _write_error(writer.i64(msg_id), error)
        case SendsFailed(_, msg_ids, error):
            writer.i64(len(msg_ids))
            for each in msg_ids:
                writer.i64(each)
            _write_error(writer, error)
        case RatchetSync(_, state, sync_error):
            _text(writer, state.value)
            writer.flag(sync_error is not None)
            if sync_error is not None:
                _write_error(writer, sync_error)
        case Failed(_, error):
            _write_error(writer, error)
        case _:
            return None
    return writer.done()


def load_event(name: str, content: bytes, handle: Handle) -> Event:
    """`WireError` for what is no event."""

    def read(reader: Reader) -> Event:
        return _read(name, reader, handle)

    return decode_whole(content, read)


def _read(name: str, reader: Reader, handle: Handle) -> Event:
    conn = handle(_read_text(reader))
    match name:
        case Connected.name:
            return Connected(conn, reader.flag())
        case InfoReceived.name:
            return InfoReceived(conn, bytes(reader.large()), reader.flag())
        case Joined.name:
            return Joined(conn, reader.flag())
        case LinkCreated.name:
            full, short = reader.large(), reader.opt(Reader.large)
            found = None if short is None else short_link_from_text(str(short, "utf-8"))
            return LinkCreated(conn, CreatedLink(conn, full_link_from_text(str(full, "utf-8")), found))
        case ConfirmationReceived.name:
            shown = _read_text(reader), bytes(reader.large()), reader.flag(), _read_servers(reader)
            return ConfirmationReceived(conn, Confirmation(conn, *shown))
        case ContactRequested.name:
            request = _read_text(reader), bytes(reader.large()), reader.flag(), _read_servers(reader)
            accepted = _read_text(reader)
            made = handle(accepted) if accepted else None
            return ContactRequested(conn, ContactRequest(conn, *request, made))
        case SendFailed.name:
            return SendFailed(conn, reader.i64(), _read_error(reader))
        case SendsFailed.name:
            msg_ids = tuple(reader.i64() for _ in range(reader.i64()))
            return SendsFailed(conn, msg_ids, _read_error(reader))
        case RatchetSync.name:
            state, failed = SyncState(_read_text(reader)), reader.flag()
            return RatchetSync(conn, state, _read_error(reader) if failed else None)
        case Failed.name:
            return Failed(conn, _read_error(reader))
    raise WireError("the name of a stored event expected")


# Errors


def _write_error(writer: Writer, error: AgentError) -> None:
    said = str(error.args[0]) if error.args else ""
    match error:
        case CommandError():
            _texts(writer, "CMD", error.code.value, said)
        case ConnError():
            _texts(writer, "CONN", error.code.value, said)
        case ProtocolError():
            _texts(writer, "AGENT", error.code.value, said, error.detail)
        case SmpError() | ProxyError():
            _texts(writer, error.family, RouterAddress(Scheme.SMP, error.server).text)
            write_error(writer, error.error)
        case NtfError():
            _texts(writer, "NTF", RouterAddress(Scheme.NTF, error.server).text)
            write_error(writer, error.error)
        case BrokerError():
            address = RouterAddress(Scheme.SMP, error.server).text
            _texts(writer, "BROKER", address, error.code.value, error.kind.value, said)
        case CriticalError():
            _texts(writer, "CRITICAL", error.kind.value, said)
        case InternalError():
            _texts(writer, "INTERNAL", said)
        case _:
            _texts(writer, "INTERNAL", str(error))


def _read_error(reader: Reader) -> AgentError:
    match _read_text(reader):
        case "CMD":
            return CommandError(CommandCode(_read_text(reader)), _read_text(reader))
        case "CONN":
            return ConnError(ConnectionCode(_read_text(reader)), _read_text(reader))
        case "AGENT":
            code, said = ProtocolCode(_read_text(reader)), _read_text(reader)
            return ProtocolError(code, said, detail=_read_text(reader))
        case "SMP":
            return SmpError(_read_server(reader), RefusedError(read_error(reader)))
        case "NTF":
            return NtfError(_read_server(reader), RefusedError(read_error(reader)))
        case "PROXY":
            return ProxyError(_read_server(reader), ProxyFailedError(read_error(reader)))
        case "BROKER":
            server, code_word, kind, said = (
                _read_server(reader),
                BrokerCode(_read_text(reader)),
                Kind(_read_text(reader)),
                _read_text(reader),
            )
            error = BrokerError(server, ConnectError(said))
            error.code, error.kind = code_word, kind
            return error
        case "CRITICAL":
            temporary = Kind(_read_text(reader)) is Kind.TEMPORARY
            return CriticalError(_read_text(reader), temporary=temporary)
        case "INTERNAL":
            return InternalError(_read_text(reader))
    raise WireError("the family of a stored error expected")


# Parts


def _text(writer: Writer, text: str) -> None:
    writer.large(text.encode())


def _texts(writer: Writer, *texts: str) -> None:
    for text in texts:
        _text(writer, text)


def _read_text(reader: Reader) -> str:
    return str(reader.large(), "utf-8")


def _write_servers(writer: Writer, servers: tuple[Server, ...]) -> None:
    writer.i64(len(servers))
    for server in servers:
        _text(writer, RouterAddress(Scheme.SMP, server).text)


def _read_servers(reader: Reader) -> tuple[Server, ...]:
    return tuple(_read_server(reader) for _ in range(reader.i64()))


def _read_server(reader: Reader) -> Server:
    return RouterAddress.from_text(_read_text(reader)).server
