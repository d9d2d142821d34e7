"""Recorded SMP conversations, with the keys that open them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blindpost.crypto.authorizers import authenticator, with_fingerprint
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.smp.versions import connection_layout
from blindpost.wire.transmission import AUTHENTICATOR_SIZE, Layout
from tests.support.wire.vectors import VECTORS, vector_file

ALGORITHMS = {algorithm.label.lower(): algorithm for algorithm in Algorithm}
FILES = sorted(path.name for path in (VECTORS / "transcripts").glob("[012]*.json"))


@dataclass(frozen=True)
class Event:
    """One block's payload, who sent it, and what the recording says about it."""

    to_router: bool
    connection: str
    payload: bytes
    note: str
    raw: bytes | None


class Transcript:
    """One file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = vector_file(f"transcripts/{name}")

    @cached_property
    def events(self) -> list[Event]:
        return [
            Event(
                event["dir"] == "c2s",
                event["conn"],
                bytes.fromhex(event["block_plain"]),
                event["note"],
                bytes.fromhex(event["block_raw"]) if "block_raw" in event else None,
            )
            for event in self._file["events"]
        ]

    @cached_property
    def private_keys(self) -> dict[str, PrivateKey]:
        found = {}
        for name, entry in self._file["keys"].items():
            if isinstance(entry, dict):
                key = PrivateKey(ALGORITHMS[entry["alg"]], bytes.fromhex(entry["priv"]))
                assert key.public.raw.hex() == entry["pub"]
                found[name] = key
        return found

    def secret(self, name: str) -> bytes | None:
        """A value that is given as plain hex."""
        found = self._file["keys"].get(name)
        return bytes.fromhex(found) if isinstance(found, str) else None

    def session(self, connection: str) -> dict[str, Any]:
        found: dict[str, Any] = self._file["sessions"][connection]
        return found

    def layout(self, connection: str) -> tuple[Layout, int]:
        session = self.session(connection)
        version: int = session["version"]
        return connection_layout(version, bytes.fromhex(session["session_id"])), version

    def router_key(self, connection: str) -> PublicKey | None:
        raw = self.secret(f"{connection}.server_session_x25519_pub")
        return None if raw is None else PublicKey(Algorithm.X25519, raw)

    @property
    def names(self) -> list[str]:
        """Of all ids."""
        return list(self._file["ids"])

    def id(self, name: str) -> bytes:
        return bytes.fromhex(self._file["ids"][name])

    def owner(self, entity_id: bytes) -> str:
        """The queue that an id belongs to."""
        names = {name for name, found in self._file["ids"].items() if found == entity_id.hex()}
        assert len(names) == 1, f"{self.name}: id of {names}"
        name: str = names.pop()
        return name.rpartition(".")[0]

    def delivery_box(self, recipient_id: bytes) -> BoxKey:
        secret = self.secret(f"{self.owner(recipient_id)}.delivery_secret")
        assert secret is not None
        return BoxKey(secret)

    def notification_box(self, notifier_id: bytes) -> BoxKey:
        """One recording has a single notifier and names its secret without a queue."""
        queue = self.owner(notifier_id)
        secret = self.secret(f"{queue}.ntf_secret" if queue else "ntf_secret")
        assert secret is not None
        return BoxKey(secret)

    def authorizers(
        self, connection: str, authorization: bytes, authorized: bytes, corr_id: bytes
    ) -> set[str]:
        """The names of all listed keys that made this authorization."""
        router_key = self.router_key(connection)
        return {
            name
            for name, key in self.private_keys.items()
            if made_by(key, authorization, authorized, corr_id, router_key)
        }

    def covered(self, connection: str, authorized: bytes, dual: bool) -> bytes:
        """What the queue key signs: on a service connection it vouches for the service too."""
        fingerprint = self.secret(f"{connection}.service_cert_fingerprint")
        return with_fingerprint(fingerprint, authorized) if dual and fingerprint else authorized


def made_by(
    key: PrivateKey, authorization: bytes, authorized: bytes, corr_id: bytes, router_key: PublicKey | None
) -> bool:
    """Whether the holder of `key` made the authorization for a router with the session key."""
    if key.algorithm is Algorithm.X25519:
        if router_key is None or len(authorization) != AUTHENTICATOR_SIZE:
            return False
        return authenticator(BoxKey.agreed(key, router_key), corr_id, authorized) == authorization
    return verify(key.public, authorized, authorization)
