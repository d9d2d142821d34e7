"""Who somebody is: a name, a picture, what they allow, and the commands that a bot offers."""

from __future__ import annotations

from enum import Enum

from blindpost.chat.codec.content import Content, read_content, write_content
from blindpost.chat.codec.fields import Fields, Json, Rest, listed, opt, written
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

BOT = "bot"
"""The `peerType` of a program: the app then offers its commands as a menu."""


class Allow(Enum):
    """Whether the other side may do something: always, if it allows the same to us, or never."""

    ALWAYS = "always"
    YES = "yes"
    NO = "no"


@dataclass(frozen=True, slots=True, repr=False)
class Preference(Value):
    """One thing that is allowed or not; `ttl` is for disappearing messages, in seconds."""

    allow: str
    ttl: int | None = None
    rest: Rest = ()


def read_preference(fields: Fields) -> Preference:
    return Preference(fields.text("allow"), fields.opt_number("ttl"), fields.rest())


def write_preference(one: Preference) -> dict[str, Json]:
    return written(one.rest, allow=one.allow, ttl=one.ttl)


@dataclass(frozen=True, slots=True, repr=False)
class MenuCommand(Value):
    """A command that the app offers: `/keyword params`, shown by its label."""

    keyword: str
    label: str
    params: str | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class Menu(Value):
    """Commands under one label."""

    label: str
    commands: tuple[MenuEntry, ...]
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class OtherEntry(Value):
    """An entry of a kind that is not known here."""

    rest: Rest


MenuEntry = MenuCommand | Menu | OtherEntry


def read_menu_entry(fields: Fields) -> MenuEntry:
    kind = fields.text("type")
    if kind == "command":
        return MenuCommand(
            fields.text("keyword"), fields.text("label"), fields.opt_text("params"), fields.rest()
        )
    if kind == "menu":
        return Menu(fields.text("label"), fields.items("commands", read_menu_entry), fields.rest())
    return OtherEntry(Fields({**fields.all(), "type": kind}).rest())


def write_menu_entry(entry: MenuEntry) -> dict[str, Json]:
    match entry:
        case MenuCommand(keyword, label, params, rest):
            return written(rest, type="command", keyword=keyword, label=label, params=params)
        case Menu(label, commands, rest):
            return written(rest, type="menu", label=label, commands=listed(commands, write_menu_entry))
        case OtherEntry(rest):
            return written(rest)


@dataclass(frozen=True, slots=True, repr=False)
class Preferences(Value):
    """What somebody allows, and the menu of a bot."""

    timed: Preference | None = None
    full_delete: Preference | None = None
    reactions: Preference | None = None
    voice: Preference | None = None
    files: Preference | None = None
    calls: Preference | None = None
    commands: tuple[MenuEntry, ...] | None = None
    rest: Rest = ()


def read_preferences(fields: Fields) -> Preferences:
    return Preferences(
        timed=fields.opt_item("timedMessages", read_preference),
        full_delete=fields.opt_item("fullDelete", read_preference),
        reactions=fields.opt_item("reactions", read_preference),
        voice=fields.opt_item("voice", read_preference),
        files=fields.opt_item("files", read_preference),
        calls=fields.opt_item("calls", read_preference),
        commands=fields.opt_items("commands", read_menu_entry),
        rest=fields.rest(),
    )


def write_preferences(prefs: Preferences) -> dict[str, Json]:
    return written(
        prefs.rest,
        timedMessages=opt(prefs.timed, write_preference),
        fullDelete=opt(prefs.full_delete, write_preference),
        reactions=opt(prefs.reactions, write_preference),
        voice=opt(prefs.voice, write_preference),
        files=opt(prefs.files, write_preference),
        calls=opt(prefs.calls, write_preference),
        commands=listed(prefs.commands, write_menu_entry),
    )


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Value):
    """How somebody is shown. `image` is a data URI; `peer_type` is "bot" for a program."""

    name: str
    full_name: str = ""
    description: str | None = None
    image: str | None = None
    contact_link: str | None = None
    peer_type: str | None = None
    preferences: Preferences | None = None
    rest: Rest = ()

    @property
    def is_bot(self) -> bool:
        return self.peer_type == BOT


def read_profile(fields: Fields) -> Profile:
    return Profile(
        name=fields.text("displayName"),
        full_name=fields.text("fullName"),
        description=fields.opt_text("shortDescr"),
        image=fields.opt_text("image"),
        contact_link=fields.opt_text("contactLink"),
        peer_type=fields.opt_text("peerType"),
        preferences=fields.opt_item("preferences", read_preferences),
        rest=fields.rest(),
    )


def write_profile(profile: Profile) -> dict[str, Json]:
    return written(
        profile.rest,
        displayName=profile.name,
        fullName=profile.full_name,
        shortDescr=profile.description,
        image=profile.image,
        contactLink=profile.contact_link,
        peerType=profile.peer_type,
        preferences=opt(profile.preferences, write_preferences),
    )


@dataclass(frozen=True, slots=True, repr=False)
class LinkProfile(Value):
    """What a short link shows before anybody connects: a profile and a welcome message."""

    profile: Profile
    message: Content | None = None
    business: bool = False
    rest: Rest = ()


def read_link_profile(fields: Fields) -> LinkProfile:
    return LinkProfile(
        profile=fields.item("profile", read_profile),
        message=fields.opt_item("message", read_content),
        business=fields.opt_flag("business") or False,
        rest=fields.rest(),
    )


def write_link_profile(link: LinkProfile) -> dict[str, Json]:
    return written(
        link.rest,
        profile=write_profile(link.profile),
        message=opt(link.message, write_content),
        business=link.business,
    )
