"""Where connections come from: TCP here, memory in `blindpost.testing`, both behind one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from blindpost.transport.listening import TcpListener

P = TypeVar("P", bound=asyncio.BaseProtocol)


class HostRefusedError(OSError):
    """The host may not be connected to from here."""

    def __init__(self) -> None:
        super().__init__("this host may not be connected to from here")


class Listener(Protocol):
    """Accepts connections until it is closed."""

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports on which it listens, one for each address."""

    async def close(self) -> None:
        """Accept no more. Connections that were accepted stay."""


class Network(Protocol):
    """Makes and accepts connections; each gets a protocol object from `factory`."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P: ...

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Listener: ...


class TcpNetwork:
    """The real one."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, host, port)
        return protocol

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> TcpListener:
        return await TcpListener.listen(factory, host, port)


TCP = TcpNetwork()
