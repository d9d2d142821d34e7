"""One connection to one router, for SMP and NTF.

What is named here is for programs; the modules below are private and move.
"""

from blindpost.client.calls import (
    Call,
    Event,
    Failure,
    Garbled,
    Late,
    Push,
    Unexpected,
)
from blindpost.client.errors import (
    ClientError,
    CorrelationIdError,
    CredentialsError,
    EncodingError,
    GarbledResponseError,
    NoHostError,
    NoRouterKeyError,
    NoServiceError,
    NotAvailableError,
    NotSentError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
    RouterSilentError,
    TooLargeError,
    UnexpectedResponseError,
)
from blindpost.client.ntf import (
    NtfClient,
)
from blindpost.client.options import (
    BACKGROUND,
    INTERACTIVE,
    Bounds,
    HostChoice,
    Options,
    SmpOptions,
    Timing,
)
from blindpost.client.relay import (
    Relay,
)
from blindpost.client.smp import (
    SmpClient,
)
from blindpost.client.socks import (
    SocksError,
    SocksNetwork,
)

__all__ = [
    "BACKGROUND",
    "Bounds",
    "Call",
    "ClientError",
    "CorrelationIdError",
    "CredentialsError",
    "EncodingError",
    "Event",
    "Failure",
    "Garbled",
    "GarbledResponseError",
    "HostChoice",
    "INTERACTIVE",
    "Late",
    "NoHostError",
    "NoRouterKeyError",
    "NoServiceError",
    "NotAvailableError",
    "NotSentError",
    "NtfClient",
    "Options",
    "ProxyFailedError",
    "Push",
    "RefusedError",
    "Relay",
    "ResponseTimeoutError",
    "RouterSilentError",
    "SmpClient",
    "SmpOptions",
    "SocksError",
    "SocksNetwork",
    "Timing",
    "TooLargeError",
    "Unexpected",
    "UnexpectedResponseError",
]
