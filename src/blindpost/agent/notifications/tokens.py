"""The device token: registered, verified, checked, replaced and deleted, as the tables say.

Each action is stored before it is done; the next `register` or the next start continues it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from blindpost.agent.errors import AgentError, prohibited
from blindpost.agent.notifications import supervisor
from blindpost.agent.notifications.errors import NtfError, PushRefusedError
from blindpost.agent.notifications.model import (
    ACTIVE,
    CHECK,
    CONFIRMED,
    EXPIRED,
    REGISTERED,
    Action,
    ActionKind,
    DoomedToken,
    PushMode,
    Token,
)
from blindpost.agent.notifications.routers import NtfRouters, ntf_error
from blindpost.agent.notifications.tables import (
    DEEDS,
    STILL_CHECKED,
    WHEN_ACTIVE,
    Deed,
    Given,
    Wish,
    stored,
)
from blindpost.agent.store import ntf_subscriptions, ntf_tokens
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.retries import RECONNECT, Retry
from blindpost.client.calls import Call
from blindpost.client.errors import UnexpectedResponseError
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.pushes import open_verification
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import (
    PERIOD_MINUTES_MIN,
    TCHK,
    TCRN,
    TDEL,
    TNEW,
    TRPL,
    TVFY,
    Command,
)
from blindpost.wire.ntf.pushes import VerificationPush
from blindpost.wire.ntf.responses import IDTKN, OK, TKN, Response
from blindpost.wire.ntf.status import TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken

_LOCK = "device token"


class Tokens:
    """The one token in use. All that changes it happens under one lock."""

    def __init__(self, ground: Ground, servers: Sequence[Server], routers: NtfRouters) -> None:
        self._ground = ground
        self._servers = servers
        self._routers = routers

    def find(self) -> Token | None:
        return ntf_tokens.find(self._ground.store.reading)

    # What the application asks

    async def register(self, device: DeviceToken, mode: PushMode) -> TokenStatus:
        """Name the device token, at every start and whenever it changes; what is needed follows."""
        async with self._ground.locked(_LOCK):
            return await self._go_on(device, mode)

    async def _go_on(self, device: DeviceToken, mode: PushMode) -> TokenStatus:
        token = self.find()
        given = Given.SAME if token is not None and token.device == device else Given.DIFFERENT
        status = await self._do(DEEDS[stored(token), given], token, device, mode)
        token = self.find()
        if token is not None and token.mode is not mode:
            self._put(replace(token, mode=mode))
        return status

    async def verify(self, push: VerificationPush, device: DeviceToken | None) -> TokenStatus:
        """Return the code that the router pushed. A push that is not of this router, or brings a code that
        was returned before, changes nothing."""
        async with self._ground.locked(_LOCK):
            token = self._registered(device)
            assert token.secret is not None
            try:
                code = open_verification(token.secret, push)
            except WireError as error:
                raise PushRefusedError("it is not from the router of this token") from error
            if token.is_active:
                return token.status
            if sha256(code).digest() in token.spent:
                raise PushRefusedError("its code is of an earlier device token")
            token = self._put(replace(token, status=CONFIRMED, action=Action(ActionKind.VERIFY, code)))
            return await self._verify(token, token.mode)

    async def check(self, device: DeviceToken | None) -> TokenStatus:
        """Ask the router for the token's status."""
        async with self._ground.locked(_LOCK):
            token = self._registered(device)
            status = await self._status(token)
            self._put(replace(token, status=status, action=token.action if _kept(status) else None))
            return status

    async def look_again(self) -> None:
        """The router refused something for the token, which is active as far as we know. The answer to TRPL
        may have been lost: then it is not, until the new device's code is returned, or never if that device
        is refused by its push service."""
        async with self._ground.locked(_LOCK):
            token = self.find()
            if token is None or not token.is_active:
                return
            try:
                status = await self._status(token)
            except NtfError as error:
                if error.retried:
                    raise
                return  # the refusal itself is reported
            if status != ACTIVE:
                self._put(replace(token, status=status))

    async def delete(self) -> None:
        """Stop notifications; the routers are informed in the background."""
        async with self._ground.locked(_LOCK):
            token = self.find()
            if token is None:
                raise prohibited("there is no device token to delete")
            self._delete(token)

    def _registered(self, device: DeviceToken | None) -> Token:
        token = self.find()
        if token is None or token.secret is None:
            raise prohibited("register a device token first")
        if device is not None and device != token.device:
            raise prohibited("another device token is registered")
        return token

    # What the table says

    async def _do(self, deed: Deed, token: Token | None, device: DeviceToken, mode: PushMode) -> TokenStatus:
        if deed is Deed.CREATE:
            return await self._register(self._create(device, mode))
        assert token is not None
        match deed:
            case Deed.TNEW:
                return await self._register(token)
            case Deed.RENAME:
                return await self._register(self._put(replace(token, device=device)))
            case Deed.TVFY:
                return await self._verify(token, mode)
            case Deed.TCHK:
                return await self._check(token, mode)
            case Deed.TRPL:
                return await self._replace(token, device, mode)
            case Deed.DELETE:
                self._delete(token)
                return EXPIRED
        return token.status

    def _create(self, device: DeviceToken, mode: PushMode) -> Token:
        if not self._servers:
            raise prohibited("no notification routers are configured")
        entropy = self._ground.config.entropy
        key = PrivateKey.generate(Algorithm.ED25519, entropy)
        dh_key = PrivateKey.generate(Algorithm.X25519, entropy)
        return self._put(Token(device, self._ground.config.chance.choice(self._servers), key, dh_key, mode))

    async def _register(self, token: Token) -> TokenStatus:
        command = TNEW(token.device, token.key.public, token.dh_key.public)
        answer = await self._routers.send(token.server, Call(command, b"", token.key))
        if not isinstance(answer, IDTKN):
            raise _unexpected(token, answer)
        secret = token.dh_key.agree(answer.dh_key)
        changed = replace(token, token_id=answer.token_id, secret=secret, status=REGISTERED, action=None)
        return self._put(changed).status

    async def _replace(self, token: Token, device: DeviceToken, mode: PushMode) -> TokenStatus:
        """The same token for another device token; or a new one if the router has none, or is another one.
        A router that refuses for another reason has it still, with its subscriptions."""
        try:
            await self._ask(token, TRPL(device))
        except AgentError as error:
            if error.retried or (isinstance(error, NtfError) and not error.is_auth):
                raise
            self._drop()
            return await self._register(self._create(device, mode))
        return self._put(token.replaced(device)).status

    async def _verify(self, token: Token, mode: PushMode) -> TokenStatus:
        assert token.action is not None
        assert token.action.code is not None
        try:
            await self._ask(token, TVFY(token.action.code))
        except NtfError as error:
            if error.is_auth:
                await self._refused(token, mode)
            raise
        token = replace(token, returned=sha256(token.action.code).digest())
        return self._activate(token, mode, tell_period=token.period is None)

    async def _refused(self, token: Token, mode: PushMode) -> None:
        """The router does not take a code: it was a wrong one, or the router does not know the token."""
        try:
            status = await self._status(token)
        except NtfError as error:
            if not error.is_auth:
                raise
            self._drop()
            await self._register(self._create(token.device, mode))
        else:
            self._put(replace(token, status=status, action=None))

    async def _check(self, token: Token, mode: PushMode) -> TokenStatus:
        status = await self._status(token)
        if status == ACTIVE:
            return self._activate(token, mode, tell_period=True)
        if status.state in UNVERIFIED and token.returned is not None:
            # It was replaced, and we did not hear of it: its router may have another device.
            return await self._replace(token, token.device, mode)
        return self._put(replace(token, status=status, action=None)).status

    def _activate(self, token: Token, mode: PushMode, *, tell_period: bool) -> TokenStatus:
        """The router pushes to this token: let connections have subscriptions, or none."""
        token = replace(token, status=ACTIVE, action=CHECK, mode=mode)
        with self._ground.transaction() as tx:
            ntf_tokens.put(tx, token)
            supervisor.wish_all(tx, WHEN_ACTIVE[mode])
        if tell_period:
            self._ground.spawn(self._tell_period())
        return token.status

    async def _tell_period(self) -> None:
        """TCRN, in the background; where it fails the next check or start does it."""
        async with self._ground.locked(_LOCK):
            token = self.find()
            if token is None or token.token_id is None:
                return
            try:
                await self._ask(token, TCRN(PERIOD_MINUTES_MIN))
            except AgentError as error:
                if error.retried:
                    return
                raise
            self._put(replace(token, period=PERIOD_MINUTES_MIN))

    def _drop(self) -> None:
        """The router does not know the token, nor the subscriptions that were made with it."""
        with self._ground.transaction() as tx:
            ntf_tokens.delete(tx)
            ntf_subscriptions.delete_all(tx)

    def _delete(self, token: Token) -> None:
        with self._ground.transaction() as tx:
            supervisor.wish_all(tx, Wish.DELETE_AT_SMP)
            ntf_tokens.doom(tx, token, tx.now)
            ntf_tokens.delete(tx)
        self._ground.keep(self.forget_doomed)

    # The router

    async def _status(self, token: Token) -> TokenStatus:
        answer = await self._send(token, TCHK())
        if not isinstance(answer, TKN):
            raise _unexpected(token, answer)
        return answer.status

    async def _ask(self, token: Token, command: Command) -> None:
        answer = await self._send(token, command)
        if not isinstance(answer, OK):
            raise _unexpected(token, answer)

    async def _send(self, token: Token, command: Command) -> Response:
        assert token.token_id is not None
        return await self._routers.send(token.server, Call(command, token.token_id, token.key))

    def _put(self, token: Token) -> Token:
        with self._ground.transaction() as tx:
            ntf_tokens.put(tx, token)
        return token

    # After a start

    async def resume(self) -> None:
        """Continue what was unfinished."""
        self._ground.keep(self.forget_doomed)
        retry = Retry.first(RECONNECT)
        while not await self._resumed():
            await asyncio.sleep(retry.jittered_s(self._ground.config.chance))
            retry = retry.next()
        token = self.find()
        if token is not None and token.is_active and token.period is None:
            await self._tell_period()

    async def _resumed(self) -> bool:
        """Do what is stored to be done, if anything is; False if the router is away."""
        async with self._ground.locked(_LOCK):
            token = self.find()
            if token is not None and token.action is not None and token.action.kind in _RESUMED:
                try:
                    await self._go_on(token.device, token.mode)
                except AgentError as error:
                    if error.retried:
                        return False
                    is_code = token.action.kind is ActionKind.VERIFY
                    if not (is_code and isinstance(error, NtfError) and error.is_auth):
                        raise
                    # The code was for an earlier device token. That is dealt with, and nobody asked.
            return True

    async def forget_doomed(self) -> None:
        """TDEL for tokens that were given up, until their routers have answered or it is too late."""
        retry = Retry.first(RECONNECT)
        async with self._ground.locked(("doomed", _LOCK)):
            while True:
                with self._ground.transaction() as tx:
                    ntf_tokens.forget_doomed_before(tx, tx.now - self._ground.config.retention.remembered_s)
                    waiting = ntf_tokens.doomed(tx)
                left = [token for token in waiting if not await self._forget(token)]
                if not left:
                    return
                await asyncio.sleep(retry.jittered_s(self._ground.config.chance))
                retry = retry.next()

    async def _forget(self, token: DoomedToken) -> bool:
        """TDEL; whether that is settled."""
        try:
            await self._routers.send(token.server, Call(TDEL(), token.token_id, token.key))
        except AgentError as error:
            if error.retried:
                return False
        with self._ground.transaction() as tx:
            ntf_tokens.forget_doomed(tx, token.number)
        return True


UNVERIFIED = frozenset({TokenState.REGISTERED, TokenState.CONFIRMED})
_RESUMED = frozenset({ActionKind.REGISTER, ActionKind.VERIFY})


def _kept(status: TokenStatus) -> bool:
    return STILL_CHECKED[status.state]


def _unexpected(token: Token, answer: Response) -> AgentError:
    return ntf_error(token.server, UnexpectedResponseError(answer))
