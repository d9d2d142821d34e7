"""The delivery service: store-and-forward of opaque payloads by recipient key and channel.

It never looks into a payload. Values in `model`, rules in `checks` and `queues`, what is in memory in
`state`, the store in `tables`, the engine's side in `plan`, sockets in `server` and `streams`.
"""

from blindpost.ds.client import ConnectionLostError, DsClient, DsError, RefusedError

__all__ = ["ConnectionLostError", "DsClient", "DsError", "RefusedError"]
