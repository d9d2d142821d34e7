"""Reading short links: what a router returns for one is verified against the link itself."""

from __future__ import annotations

from blindpost.agent.errors import BrokerError, ProtocolCode, ProtocolError
from blindpost.agent.links.values import LinkContent
from blindpost.agent.model import UserId
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.store import handshakes
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Call
from blindpost.client.errors import UnexpectedResponseError
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.link_data import LinkDataError, contact_link_secrets, resolve_link_data
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.links.data import ContactLinkData
from blindpost.wire.links.short import ShortInvitation, ShortLink
from blindpost.wire.smp.commands import LGET, LKEY, Command
from blindpost.wire.smp.responses import LNK
from blindpost.wire.text import ub64


class LinkReader:
    """Reads short links from their routers."""

    def __init__(self, ground: Ground, sender: QueueSender) -> None:
        self._ground = ground
        self._sender = sender

    async def read(self, user_id: UserId, link: ShortLink) -> LinkContent:
        """What a short link leads to. Reading an invitation secures its queue for us: its key is kept."""
        call: Call[Command]
        if isinstance(link, ShortInvitation):
            fresh = PrivateKey.generate(Algorithm.ED25519, self._ground.config.entropy)
            with self._ground.transaction() as tx:
                key = handshakes.short_link_key(tx, link.server, link.link_id, link.link_key, fresh)
            call = Call(LKEY(key.public), link.link_id, key)
        else:
            call = Call(LGET(), contact_link_secrets(link.link_key)[0])
        answered = await self._sender.send_to_queue(user_id, link.server, call, entity=ub64(call.entity_id))
        response = answered.response
        if not isinstance(response, LNK):
            raise BrokerError(link.server, UnexpectedResponseError(response))
        try:
            data = resolve_link_data(link, response.sender_id, response.data.fixed, response.data.user)
        except LinkDataError as error:
            raise ProtocolError(ProtocolCode.A_LINK, str(error)) from error
        except WireError as error:
            raise ProtocolError(ProtocolCode.A_MESSAGE, str(error)) from error
        if isinstance(link, ShortInvitation):
            with self._ground.transaction() as tx:
                handshakes.set_short_link_sender(tx, link.server, link.link_id, response.sender_id)
        user, fixed = data.user, data.fixed
        if isinstance(user, ContactLinkData):
            return LinkContent(
                fixed.link, bytes(user.user_data), fixed.entity_id, user.direct, user.owners, user.relays
            )
        return LinkContent(fixed.link, bytes(user.user_data), fixed.entity_id)
