"""The text forms that addresses, links and store logs share: base64url, numbers, percent escapes."""

from __future__ import annotations

import binascii
import re
import urllib.parse

from blindpost.wire.errors import WireError
from blindpost.wire.value import Buffer

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
_PADDING = ("", "===", "==", "=")


def b64(data: Buffer) -> str:
    """base64url with padding, as written in full links and router addresses."""
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).decode("ascii")


def ub64(data: Buffer) -> str:
    """base64url without padding, as written in short links."""
    return b64(data).rstrip("=")


def unb64(text: str) -> bytes:
    """Read base64url with complete padding or none; the empty string is not accepted."""
    if _BASE64URL.fullmatch(text) is None:
        raise WireError("base64url text expected")
    incomplete = len(text) % 4
    if incomplete:
        if text.endswith("="):
            raise WireError("base64url text with complete padding or none expected")
        text += _PADDING[incomplete]
    try:
        return binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL))
    except binascii.Error as error:
        raise WireError("base64url text expected") from error


def escaped(text: str) -> str:
    """`text` as the value of a query's parameter: everything but letters, digits and `-_.~` escaped."""
    try:
        return urllib.parse.quote(text, safe="")
    except UnicodeEncodeError as error:
        raise WireError("text that UTF-8 can carry expected") from error


def read_query(text: str) -> dict[str, str]:
    """The parameters of a query, unescaped; the first of equal names wins.

    Bytes that are not UTF-8 come through as lone surrogates, so only code that uses the parameter minds.
    """
    parameters: dict[str, str] = {}
    if " " in text or "\n" in text:
        raise WireError("a query without spaces expected")
    for part in text.replace(";", "&").split("&"):
        name, _, value = part.partition("=")
        parameters.setdefault(_unescape(name), _unescape(value))
    return parameters


def _unescape(text: str) -> str:
    return urllib.parse.unquote(text.replace("+", " "), errors="surrogateescape")
