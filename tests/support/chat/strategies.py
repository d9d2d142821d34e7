"""Values of the app's messages, of every kind."""

from __future__ import annotations

from hypothesis import strategies as st

from blindpost.chat.codec import events as e
from blindpost.chat.codec.content import Content, FileOffer, MessageRef, Quote, Scope
from blindpost.chat.codec.fields import Rest
from blindpost.chat.codec.groups import GroupInvite, GroupProfile, MemberInfo, MemberRef
from blindpost.chat.codec.profiles import LinkProfile, Menu, MenuCommand, Preference, Preferences, Profile
from blindpost.wire.versions import VersionRange

texts = st.text(max_size=20)
ids = st.binary(min_size=1, max_size=20)
numbers = st.integers(-(2**63) + 1, 2**63 - 1)
rests: st.SearchStrategy[Rest] = st.sampled_from(
    [(), (("zAdded", '{"a":[1,null,"ü"]}'),), (("zAdded", "1"), ("zLater", '"x"'))]
)
versions = st.builds(
    lambda low, more: VersionRange(low, low + more), st.integers(1, 100), st.integers(0, 100)
)
preferences = st.builds(Preference, st.sampled_from(["always", "yes", "no"]), st.none() | numbers, rests)
commands = st.builds(MenuCommand, texts, texts, st.none() | texts, rests)
menus = st.builds(Menu, texts, st.lists(commands, max_size=2).map(tuple), rests)
all_preferences = st.builds(
    Preferences,
    *[st.none() | preferences for _ in range(6)],
    st.none() | st.lists(commands | menus, max_size=3).map(tuple),
    rests,
)
contents = st.builds(
    Content, texts, st.sampled_from(["text", "voice", "x.custom"]), st.none() | numbers, rests
)
profiles = st.builds(
    Profile, texts, texts, *[st.none() | texts for _ in range(4)], st.none() | all_preferences, rests
)
links = st.builds(LinkProfile, profiles, st.none() | contents, st.booleans(), rests)
refs = st.builds(MessageRef, st.none() | ids, texts, st.booleans(), st.none() | ids, rests)
quotes = st.builds(Quote, refs, contents, rests)
files = st.builds(FileOffer, texts, numbers, rests)
group_profiles = st.builds(GroupProfile, texts, texts, st.none() | texts, st.none() | texts, rests)
member_refs = st.builds(MemberRef, ids, texts, rests)
invites = st.builds(GroupInvite, member_refs, member_refs, texts, group_profiles, rests)
members = st.builds(MemberInfo, ids, texts, profiles, versions, rests)
scopes = st.none() | st.builds(Scope, st.none() | ids, st.just("member") | texts, rests)
flags = st.none() | st.booleans()
simple: st.SearchStrategy[e.AnyEvent] = st.one_of(
    st.builds(e.Info, profiles, rests),
    st.builds(
        e.ContactRequest,
        profiles,
        st.none() | ids,
        st.none() | ids,
        st.none() | ids,
        st.none() | contents,
        rests,
    ),
    st.builds(
        e.NewMessage,
        contents,
        st.none() | quotes,
        st.none() | files,
        st.none() | numbers,
        flags,
        flags,
        st.dictionaries(texts, ids, max_size=2).map(lambda named: tuple(named.items())),
        scopes,
        rests,
    ),
    st.builds(e.EditMessage, ids, contents, st.none() | numbers, flags, scopes, rests),
    st.builds(e.DeleteMessage, ids, st.none() | ids, scopes, rests),
    st.builds(e.React, ids, texts, st.booleans(), st.none() | ids, rests, scopes, rests),
    st.builds(
        e.React,
        ids,
        st.none(),
        st.booleans(),
        st.none() | ids,
        st.just((("type", '"later"'),)),
        scopes,
        rests,
    ),
    st.builds(e.ContactLeft, rests),
    st.builds(e.FileAccepted, ids, texts, st.none() | texts, rests),
    st.builds(e.GroupInvited, invites, rests),
    st.builds(e.GroupAccepted, ids, rests),
    st.builds(e.Accepted, rests),
    st.builds(e.MemberNew, members, rests),
    st.builds(e.MemberIntroduced, members, rests),
    st.builds(e.MemberInvited, ids, texts, rests, rests),
    st.builds(e.MemberForwarded, members, texts, rests, rests),
    st.builds(e.MemberIdentity, ids, profiles, rests),
    st.builds(e.MemberConnected, ids, rests),
    st.builds(e.MemberRole, ids, texts, rests),
    st.builds(e.MemberRemoved, ids, rests),
    st.builds(e.GroupLeft, rests),
    st.builds(e.GroupDeleted, rests),
    st.builds(e.GroupChanged, group_profiles, rests),
    st.builds(e.Other, st.sampled_from(["x.later", "x.info.probe"]), rests),
)
enveloped = st.builds(e.Message, simple, st.none() | ids, versions, rests)
events = simple | st.builds(e.GroupForwarded, ids, enveloped, texts, st.none() | texts, rests)
messages = st.builds(e.Message, events, st.none() | ids, versions, rests)
