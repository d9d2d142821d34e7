"""One certificate from an ACME authority (RFC 8555), by certbot's library. It waits: not for an event loop.

Imported only by a router that is to get its certificates itself; it needs the extra `acme`.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import requests
from acme import challenges, client, crypto_util, errors, messages
from cryptography.hazmat.primitives import serialization
from josepy.b64 import b64encode
from josepy.errors import Error as JoseError
from josepy.jwa import ES256
from josepy.jwk import JWK, JWKEC
from requests.adapters import HTTPAdapter

import blindpost
from blindpost.web.challenges import Challenges, IssueError, new_key

REQUEST_S = 30
VALIDATION = datetime.timedelta(seconds=120)
"""How long the authority may take to look at the names and to sign."""
_SAID_MAX = 300
_KIND = "tls-alpn-01"


@dataclass(frozen=True, slots=True)
class Authority:
    """Who is asked."""

    directory: str
    email: str = ""
    ca_file: Path | None = None
    """Whom to trust for the authority's own site, if not the usual ones."""


def issue(authority: Authority, account_key: bytes, names: list[str], open_: Challenges) -> bytes:
    """A fresh private key and the certificate chain for these names, in PEM form."""
    try:
        return _issued(authority, account_key, names, open_)
    except (errors.Error, JoseError, requests.RequestException, OSError) as error:
        raise IssueError(_said(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise IssueError(f"{authority.directory} does not answer as ACME asks") from error
    finally:
        open_.close()


def _issued(authority: Authority, account_key: bytes, names: list[str], open_: Challenges) -> bytes:
    account = _jwk(account_key)
    asked = _signed_in(authority, account)
    key = new_key()
    order = asked.new_order(crypto_util.make_csr(key, names))
    for authorization in order.authorizations:
        if authorization.body.status == messages.STATUS_VALID:
            continue
        name = authorization.body.identifier.value
        for question in authorization.body.challenges:
            # The library knows no class for this kind: it hands on what the authority wrote.
            written = question.chall.to_partial_json()
            if written.get("type") == _KIND:
                proof = f"{written['token']}.{b64encode(account.thumbprint()).decode()}"
                open_.open(name, proof)
                asked.answer_challenge(
                    question, challenges.KeyAuthorizationChallengeResponse(key_authorization=proof)
                )
                break
        else:
            raise IssueError(f"{authority.directory} does not offer {_KIND}")
    done = asked.poll_and_finalize(order, datetime.datetime.now() + VALIDATION)
    return key + str(done.fullchain_pem).encode()


def _jwk(text: bytes) -> JWK:
    try:
        return JWKEC(key=serialization.load_pem_private_key(text, None))
    except (TypeError, ValueError) as error:
        raise IssueError("account.key is damaged; delete it, and a new account is made") from error


def _signed_in(authority: Authority, account: JWK) -> client.ClientV2:
    """The authority with our account, which is made if there is none: the operator agreed to the terms."""
    ca: bool | str = True if authority.ca_file is None else str(authority.ca_file)
    network = client.ClientNetwork(
        account,
        alg=ES256,
        verify_ssl=cast(bool, ca),  # handed on to requests, which takes a file too
        user_agent=f"blindpost/{blindpost.__version__}",
        timeout=REQUEST_S,
    )
    # This host and no other, whatever it answers and whatever the environment says.
    network.session.trust_env = False
    network.session.adapters.clear()
    network.session.mount(f"https://{urlsplit(authority.directory).netloc}/", HTTPAdapter())
    asked = client.ClientV2(client.ClientV2.get_directory(authority.directory, network), network)
    if asked.external_account_required():
        raise IssueError(f"{authority.directory} wants an account that is made elsewhere first")
    try:
        asked.new_account(
            messages.NewRegistration.from_data(email=authority.email or None, terms_of_service_agreed=True)
        )
    except errors.ConflictError as known:
        network.account = messages.RegistrationResource(uri=known.location, body=messages.Registration())
    return asked


def _said(error: Exception) -> str:
    """What the authority or the network said, short and on one line."""
    text = str(error)
    if isinstance(error, errors.ValidationError):
        said = [
            f"{one.body.identifier.value}: {question.error.detail}"
            for one in error.failed_authzrs
            for question in one.body.challenges
            if question.error is not None
        ]
        text = "the authority could not see that a name is ours (" + "; ".join(said) + ")"
    elif isinstance(error, messages.Error):
        text = f"the authority refused ({error.detail})"
    elif isinstance(error, requests.RequestException):
        text = f"the authority cannot be reached ({_cause(error)})"
    elif isinstance(error, errors.TimeoutError):
        text = f"the authority did not finish in {VALIDATION.seconds} seconds"
    return re.sub(r"[\s\x00-\x1f\x7f]+", " ", text or type(error).__name__).removesuffix(".")[:_SAID_MAX]


def _cause(error: BaseException) -> str:
    """The innermost reason, which libraries wrap several times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
