"""The two protocols as a client speaks them: commands into transmissions, blocks into responses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from blindpost.client.authorizing import Authorizer
from blindpost.client.calls import C, Call, Garbled, R
from blindpost.client.errors import CredentialsError, NoServiceError, NotAvailableError
from blindpost.client.framing import NTF_FRAMING, NTF_V1_FRAMING, SMP_FRAMING, Framing
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.handshake import Agreement
from blindpost.wire.ntf import commands as ntf
from blindpost.wire.ntf import responses as ntf_responses
from blindpost.wire.ntf import transmissions as ntf_transmissions
from blindpost.wire.ntf.versions import AUTH_BATCH_VERSION
from blindpost.wire.ntf.versions import connection_layout as ntf_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp import commands as smp
from blindpost.wire.smp import responses as smp_responses
from blindpost.wire.smp import transmissions as smp_transmissions
from blindpost.wire.smp.credentials import RULES, credentials_error
from blindpost.wire.smp.errors import CMD, SMPError
from blindpost.wire.smp.values import SubMode
from blindpost.wire.smp.versions import connection_layout as smp_layout
from blindpost.wire.transmissions import Refused, signed_request

Answer = tuple[bytes, bytes, R | Garbled]
"""Correlation id, entity id, and what came."""


def check_available(command: smp.Command, version: int) -> None:
    since = RULES[type(command)].since
    if version < since:
        tag = command.TAG.decode("ascii")
        raise NotAvailableError(f"{tag} needs version {since}, agreed is {version}")


def check_credentials(error: CMD | None) -> None:
    if error is not None:
        raise CredentialsError(error)


class Dialect(ABC, Generic[C, R]):
    """One protocol at the version agreed for one session."""

    framing: Framing
    ping: C

    def entity_of(self, call: Call[C]) -> bytes:
        """What the response will be about."""
        return call.entity_id

    @abstractmethod
    def transmission(self, call: Call[C], corr_id: bytes) -> Writer:
        """The command as it is sent, or `NotSentError`."""

    @abstractmethod
    def answers(self, payload: bytes) -> list[Answer[R]]:
        """What one block holds."""

    @abstractmethod
    def refusal(self, response: R) -> SMPError | None:
        """The error, if the response is one."""

    def keeps_alive(self, command: C) -> bool:
        """Whether a silent connection is kept alive with PING after this command: something may come."""
        return False


class SmpDialect(Dialect[smp.Command, smp_responses.Response]):
    """SMP, with or without a service."""

    framing = SMP_FRAMING
    ping = smp.PING()

    def __init__(self, agreement: Agreement, secrets_max: int) -> None:
        self._version = agreement.version
        self._service = agreement.service
        self._layout = smp_layout(agreement.version, agreement.session_id)
        self._authorizer = Authorizer(self._layout, agreement.peer_key, secrets_max)

    def entity_of(self, call: Call[smp.Command]) -> bytes:
        if isinstance(call.command, smp.SUBS | smp.NSUBS) and self._service is not None:
            return self._service.service_id
        return call.entity_id

    def transmission(self, call: Call[smp.Command], corr_id: bytes) -> Writer:
        command, service = call.command, self._service
        check_available(command, self._version)
        key: PrivateKey | None = call.key
        if isinstance(command, smp.SUBS | smp.NSUBS):
            if service is None:
                raise NoServiceError
            key = service.private
        entity_id = self.entity_of(call)
        check_credentials(credentials_error(command, key is not None, entity_id != b""))
        signed = signed_request(corr_id, entity_id, command, self._version)
        if service is not None and key is not None and RULES[type(command)].service_signed:
            return self._authorizer.dual(corr_id, signed, key, service)
        return self._authorizer.plain(corr_id, signed, key)

    def answers(self, payload: bytes) -> list[Answer[smp_responses.Response]]:
        parsed = smp_transmissions.parse_responses(Reader(payload), self._layout, self._version)
        return [
            (item.corr_id, item.entity_id, _garbled(item) if isinstance(item, Refused) else item.response)
            for item in parsed
        ]

    def refusal(self, response: smp_responses.Response) -> SMPError | None:
        return response.error if isinstance(response, smp_responses.ERR) else None

    def keeps_alive(self, command: smp.Command) -> bool:
        match command:
            case smp.SUB() | smp.NSUB() | smp.SUBS() | smp.NSUBS():
                return True
            case smp.NEW(sub_mode=mode):
                return mode is SubMode.SUBSCRIBE
        return False


class NtfDialect(Dialect[ntf.Command, ntf_responses.Response]):
    """The notification protocol. Its routers send nothing unasked."""

    ping = ntf.PING()

    def __init__(self, agreement: Agreement, secrets_max: int) -> None:
        self._version = agreement.version
        self._layout = ntf_layout(agreement.version, agreement.session_id)
        self._authorizer = Authorizer(self._layout, agreement.peer_key, secrets_max)
        self.framing = NTF_FRAMING if agreement.version >= AUTH_BATCH_VERSION else NTF_V1_FRAMING

    def transmission(self, call: Call[ntf.Command], corr_id: bytes) -> Writer:
        command, entity_id, key = call.command, call.entity_id, call.key
        error = ntf_transmissions.credentials_error(command, key is not None, entity_id != b"")
        check_credentials(error)
        signed = signed_request(corr_id, entity_id, command, self._version)
        return self._authorizer.plain(corr_id, signed, key)

    def answers(self, payload: bytes) -> list[Answer[ntf_responses.Response]]:
        parsed = ntf_transmissions.parse_responses(Reader(payload), self._layout, self._version)
        return [
            (item.corr_id, item.entity_id, _garbled(item) if isinstance(item, Refused) else item.response)
            for item in parsed
        ]

    def refusal(self, response: ntf_responses.Response) -> SMPError | None:
        return response.error if isinstance(response, ntf_responses.ERR) else None

    def keeps_alive(self, command: ntf.Command) -> bool:
        """Nothing comes unasked, but routers close connections that are silent."""
        return True


def _garbled(refused: Refused) -> Garbled:
    return Garbled(refused.error)
