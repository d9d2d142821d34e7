"""The SimpleX app's own messages above the agent: contacts, profiles, text, receipts and groups.

What is named here is for programs; the modules below are private and move.
"""

from blindpost.chat.chats import Chats, Unit
from blindpost.chat.codec.bodies import TooLongError
from blindpost.chat.codec.content import Content, FileOffer, MessageRef, Quote, Scope
from blindpost.chat.codec.events import REACTIONS
from blindpost.chat.codec.groups import GroupInvite, GroupProfile
from blindpost.chat.codec.profiles import (
    Allow,
    LinkProfile,
    Menu,
    MenuCommand,
    Preference,
    Preferences,
    Profile,
)
from blindpost.chat.drafts import Draft, NotConnectedError
from blindpost.chat.events import (
    AgentNews,
    Asked,
    ChatEvent,
    ContactConnected,
    ContactGone,
    Delivered,
    GroupEntered,
    GroupOffered,
    GroupOver,
    GroupUpdated,
    Incoming,
    MemberCame,
    MemberGone,
    MessageDeleted,
    MessageEdited,
    MessageReceived,
    ProfileChanged,
    Reacted,
    Trouble,
)
from blindpost.chat.model import (
    Contact,
    ContactState,
    Conversation,
    Group,
    GroupState,
    Member,
)
from blindpost.chat.presets import preset_servers

__all__ = [
    "AgentNews",
    "Allow",
    "Asked",
    "ChatEvent",
    "Chats",
    "Contact",
    "ContactConnected",
    "ContactGone",
    "ContactState",
    "Content",
    "Conversation",
    "Delivered",
    "Draft",
    "FileOffer",
    "Group",
    "GroupEntered",
    "GroupInvite",
    "GroupOffered",
    "GroupOver",
    "GroupProfile",
    "GroupState",
    "GroupUpdated",
    "Incoming",
    "LinkProfile",
    "Member",
    "MemberCame",
    "MemberGone",
    "Menu",
    "MenuCommand",
    "MessageDeleted",
    "MessageEdited",
    "MessageReceived",
    "MessageRef",
    "NotConnectedError",
    "Preference",
    "Preferences",
    "Profile",
    "ProfileChanged",
    "Quote",
    "REACTIONS",
    "Reacted",
    "Scope",
    "TooLongError",
    "Trouble",
    "Unit",
    "preset_servers",
]
