"""The proof of a move: how much there was on each side, and hashes over all of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from blindpost.ntf.model import Notification, SmpRouter, Subscription, Token
from blindpost.wire.addresses import write_server
from blindpost.wire.primitives import encode


class Tally:
    """How many values there are, and a hash over them that does not depend on their order."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = 0

    def add(self, *parts: object) -> None:
        hashed = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            hashed.update(len(data).to_bytes(8, "big") + data)
        self.count += 1
        self._hash ^= int.from_bytes(hashed.digest(), "big")

    @property
    def hex(self) -> str:
        return self._hash.to_bytes(32, "big").hex()


class Sums:
    """What one side holds."""

    def __init__(self) -> None:
        self.tokens, self.subscriptions, self.notifications, self.services = (Tally() for _ in range(4))

    def token(self, token: Token) -> None:
        self.tokens.add(
            *(token.token_id, token.device.provider.text, token.device.token, token.status.text),
            *(token.verify_key.spki, token.dh_key.raw, token.secret.raw, token.code.raw),
            *(token.period_minutes, token.period_sent, token.updated_day),
        )

    def subscription(self, one: Subscription) -> None:
        self.subscriptions.add(
            *(one.subscription_id, one.token_id, encode(one.server, write_server), one.notifier_id),
            *(one.notifier_key.pkcs8, one.status.encoded, one.is_associated),
        )

    def notification(self, one: Notification) -> None:
        self.notifications.add(one.subscription_id, one.token_id, one.seconds, one.nonce, one.encrypted_meta)

    def router(self, router: SmpRouter) -> None:
        if router.service is not None:
            service = router.service
            self.services.add(
                encode(router.server, write_server),
                service.service_id or b"",
                service.credentials.key.pkcs8,
                *service.credentials.chain,
            )

    def values(self) -> dict[str, int | str]:
        found: dict[str, int | str] = {}
        for name in ("tokens", "subscriptions", "notifications", "services"):
            tally: Tally = getattr(self, name)
            found[name], found[f"{name} hash"] = tally.count, tally.hex
        return found


@dataclass(slots=True)
class Moved:
    """What was there, what is there now, and what was left out."""

    source: Sums = field(default_factory=Sums)
    result: Sums = field(default_factory=Sums)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def differing(self) -> list[str]:
        before, after = self.source.values(), self.result.values()
        return [name for name in before if before[name] != after[name]]
