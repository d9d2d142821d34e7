"""What happens in chats: a closed union of frozen values to match on."""

from __future__ import annotations

from datetime import UTC, datetime

from blindpost.agent import AgentError
from blindpost.agent import Event as AgentEvent
from blindpost.chat.codec.content import Content, FileOffer, MessageRef, Quote, Scope
from blindpost.chat.codec.groups import GroupInvite
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.model import Contact, Conversation, Group, Member
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class Incoming(Value):
    """A message from somebody else. Voice, pictures and files come as name and size, never downloaded."""

    id: bytes | None
    content: Content
    sent_at: int
    quote: Quote | None = None
    file: FileOffer | None = None
    ttl: int | None = None
    live: bool = False
    forwarded: bool = False
    mentions: tuple[tuple[str, bytes], ...] = ()
    scope: Scope | None = None
    """In a group: for whom it is, if not for everybody."""

    @property
    def text(self) -> str:
        return self.content.text

    @property
    def kind(self) -> str:
        return self.content.kind

    @property
    def quoted(self) -> str | None:
        """The text that it answers."""
        return None if self.quote is None else self.quote.content.text

    @property
    def shown(self) -> str:
        """Everything in one text: what was said, and what else came."""
        parts = [self.text] if self.text else []
        if self.file is not None:
            parts.append(f"[{self.kind} {self.file.name}, {self.file.size} bytes: cannot be taken here]")
        elif self.kind not in ("text", "link") and not self.text:
            parts.append(f"[{self.kind}]")
        return " ".join(parts)

    def as_quote(self, member: Member | None = None) -> Quote | None:
        """How an answer names it, if it can be named."""
        if self.id is None:
            return None
        sent_at = datetime.fromtimestamp(self.sent_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ref = MessageRef(self.id, sent_at, False, None if member is None else member.id)
        return Quote(ref, Content(self.text))


@dataclass(frozen=True, slots=True, repr=False)
class Asked(Value):
    """Somebody wants to be a contact: accept or reject it. Until then it is repeated after each restart."""

    request_id: str
    address_id: str
    profile: Profile
    text: str | None = None
    msg_id: bytes | None = None
    version: int = 1
    welcome_id: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ContactConnected(Value):
    """Both sides can send; `first` is the message that came with their request."""

    contact: Contact
    first: Incoming | None = None


@dataclass(frozen=True, slots=True, repr=False)
class MessageReceived(Value):
    """A message came; in a group, from `member`."""

    chat: Conversation
    message: Incoming
    member: Member | None = None


@dataclass(frozen=True, slots=True, repr=False)
class MessageEdited(Value):
    """A message was edited: `message` has the id of the old one."""

    chat: Conversation
    message: Incoming
    member: Member | None = None


@dataclass(frozen=True, slots=True, repr=False)
class MessageDeleted(Value):
    """A message was deleted, by its author or by a moderator."""

    chat: Conversation
    msg_id: bytes
    member: Member | None = None
    author_id: bytes | None = None
    scope: Scope | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Reacted(Value):
    """Somebody added or removed a reaction to a message; without an emoji it is of a kind not known here."""

    chat: Conversation
    msg_id: bytes
    emoji: str | None
    added: bool
    member: Member | None = None
    scope: Scope | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ProfileChanged(Value):
    contact: Contact


@dataclass(frozen=True, slots=True, repr=False)
class ContactGone(Value):
    """The contact deleted us; nothing more can be sent."""

    contact: Contact


@dataclass(frozen=True, slots=True, repr=False)
class GroupOffered(Value):
    """A contact invites us to a group: join it, or ignore this."""

    contact: Contact
    invite: GroupInvite


@dataclass(frozen=True, slots=True, repr=False)
class GroupEntered(Value):
    """We have joined the group."""

    group: Group


@dataclass(frozen=True, slots=True, repr=False)
class GroupOver(Value):
    """The group was deleted, or we were removed."""

    group: Group
    removed: bool


@dataclass(frozen=True, slots=True, repr=False)
class GroupUpdated(Value):
    """The group's profile or somebody's role changed."""

    group: Group


@dataclass(frozen=True, slots=True, repr=False)
class MemberCame(Value):
    group: Group
    member: Member


@dataclass(frozen=True, slots=True, repr=False)
class MemberGone(Value):
    group: Group
    member: Member


@dataclass(frozen=True, slots=True, repr=False)
class Delivered(Value):
    """The other side has these messages, by the numbers that `send` gave."""

    chat: Conversation
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Trouble(Value):
    """Something about a conversation went wrong; `numbers` are messages that will not be sent."""

    chat: Conversation | None
    error: AgentError
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class AgentNews(Value):
    """What the agent reports about routers and queues; no action is needed."""

    event: AgentEvent


ChatEvent = (
    Asked
    | ContactConnected
    | MessageReceived
    | MessageEdited
    | MessageDeleted
    | Reacted
    | ProfileChanged
    | ContactGone
    | GroupOffered
    | GroupEntered
    | GroupOver
    | GroupUpdated
    | MemberCame
    | MemberGone
    | Delivered
    | Trouble
    | AgentNews
)
