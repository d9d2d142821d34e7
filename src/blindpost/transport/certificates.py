"""Which certificate chains each side accepts in TLS, with a named error for each refusal."""

from __future__ import annotations

from collections.abc import Callable

from blindpost.crypto.chains import ChainError, ChainFailure, validate_router_chain, validate_service_chain
from blindpost.transport import errors
from blindpost.transport.tls import ChainCheck

Now = Callable[[], float]
"""The time of day in Unix seconds."""

_NAMES: dict[ChainFailure, type[errors.CertificateError]] = {
    ChainFailure.EMPTY: errors.ChainTooShortError,
    ChainFailure.TOO_LONG: errors.ChainTooLongError,
    ChainFailure.UNKNOWN_CA: errors.UnknownCaError,
    ChainFailure.EXPIRED: errors.CertificateExpiredError,
    ChainFailure.IN_FUTURE: errors.CertificateExpiredError,
}


def _named(error: ChainError) -> errors.CertificateError:
    kind = _NAMES.get(error.failure)
    return kind() if kind is not None else errors.ChainInvalidError(f"the chain is not valid: {error}")


def router_chain_check(key_hash: bytes, now: Now) -> ChainCheck:
    """A client's check: the router must have the identity that its address names."""

    def check(chain: tuple[bytes, ...]) -> None:
        if not chain:
            raise errors.ChainEmptyError
        try:
            validate_router_chain(chain, key_hash, int(now()))
        except ChainError as error:
            raise _named(error) from error

    return check


def client_chain_check(now: Now) -> ChainCheck:
    """A router's check: no certificate at all, or a chain that validates with its own last certificate."""

    def check(chain: tuple[bytes, ...]) -> None:
        if not chain:
            return
        try:
            validate_service_chain(chain, int(now()))
        except ChainError as error:
            raise _named(error) from error

    return check
