"""Bots: programs that people talk to from the SimpleX app.

    bot = Bot("Ada", servers=["smp://..."], store="ada.db")

    @bot.command("echo", "say it again")
    async def echo(chat: Chat, text: str) -> None:
        await chat.reply(text)

    bot.run()

A handler's answers and state changes are committed in one transaction with the acknowledgement of the message
it handles: each message is answered exactly once, whatever crashes and whenever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, get_args

from blindpost.agent import (
    Agent,
    AgentConfig,
    AgentError,
    CreatedLink,
    CriticalError,
    Event,
    NetworkError,
    RatchetSync,
    StoreFailedError,
    SubscriptionsFailed,
    SyncState,
)
from blindpost.bot.broadcasts import Audience, Broadcasts, Progress
from blindpost.bot.chat import EVERYBODY, STATES, Chat, Outbox, state_key
from blindpost.bot.deaths import Deaths
from blindpost.bot.handling import Handling
from blindpost.bot.metrics import Metrics
from blindpost.bot.routes import NAME, Command, MessageRoute, Middleware, Outcome, Routes, Where
from blindpost.bot.setting_aside import ASIDE, SetAside, aside_from
from blindpost.bot.timing import Every, Timing
from blindpost.bot.typed import arguments_of, load_state
from blindpost.bot.working import Patience, Task, Workers
from blindpost.chat import (
    AgentNews,
    Allow,
    Asked,
    ChatEvent,
    Chats,
    Contact,
    ContactState,
    Conversation,
    GroupOffered,
    GroupState,
    MessageReceived,
    NotConnectedError,
    Preference,
    Preferences,
    Profile,
    Trouble,
)
from blindpost.chat.codec.profiles import BOT
from blindpost.wire.errors import WireError
from blindpost.wire.value import Value

log = logging.getLogger("blindpost.bot")

P = ParamSpec("P")
R = TypeVar("R", bound=Outcome)
E = TypeVar("E", bound=Value)
T = TypeVar("T")
AskedDecision = Callable[[Asked], Awaitable[bool] | bool]
OfferDecision = Callable[[GroupOffered], Awaitable[bool] | bool]

EVENTS = frozenset(get_args(ChatEvent))
INSTEAD = {
    MessageReceived: "messages are for @bot.command and @bot.message",
    Asked: "requests are for @bot.on_request",
    GroupOffered: "invitations are for @bot.on_invitation",
    AgentNews: "what happens to routers is in the log, and of no conversation",
}
"""Events that handlers of events do not get."""
REPAIR_S = 3600.0
TIDY_S = 3600.0
SHOW_S = 300.0
"""How often it is tried to change what the address shows, while its router does not take it."""
LOST_ADDRESS = "nobody can reach the bot by its address: %s. `await bot.new_address()` makes another one"
LOST_CONTACTS = "contacts who cannot be heard any more, and have to connect again: %d. %s"
CLOSED = "the bot is not open: use `async with bot.open()`, or call `run()`"


class Bot:
    """A name, a store, and handlers. `run()` is all that most programs call."""

    def __init__(
        self,
        name: str,
        *,
        servers: Iterable[str] = (),
        store: str | Path,
        description: str | None = None,
        image: str | None = None,
        welcome: str | None = None,
        passphrase: str | None = None,
        service: bool = False,
        groups: bool = False,
        config: AgentConfig | None = None,
        patience: Patience | None = None,
        handlers_at_once: int = 64,
        drain_s: float = 10.0,
    ) -> None:
        """`service`: all queues are subscribed by one command, for bots with very many contacts; routers then
        know that these queues are one bot's. `groups`: invitations to groups are accepted."""
        if not isinstance(name, str) or not name.strip():
            raise TypeError("a bot needs a name that people can read")
        if patience is not None and not isinstance(patience, Patience):
            raise TypeError("patience: a Patience expected, such as Patience(pauses_s=(0.5, 5.0))")
        if not isinstance(handlers_at_once, int) or handlers_at_once < 1:
            raise TypeError("handlers_at_once: a number of at least 1 expected")
        self.name = name
        self._servers = [] if isinstance(servers, str) else list(servers)
        self.store = Path(store)
        Agent.open(store, servers)  # an address that cannot be one is reported here
        self._passphrase = passphrase
        chosen = config or AgentConfig()
        self._config = replace(chosen, service=True) if service else chosen
        self._description = description
        self._image = image
        self._welcome = welcome
        self._groups = groups
        self._patience = patience or Patience()
        self._at_once = handlers_at_once
        self._drain_s = drain_s
        self._now = chosen.now
        self._routes = Routes()
        self._every: list[Every] = []
        self._audiences: dict[str, Audience] = {}
        self.metrics = Metrics()
        self._repaired: dict[str, float] = {}
        """When new keys were offered last, by connection."""
        self._chats: Chats | None = None
        self._broadcasts: Broadcasts | None = None
        self._workers: Workers | None = None
        self.broken: asyncio.Future[None] | None = None
        """Raises if the bot, while it is open, cannot continue."""
        self.command("help", "what I can do")(self._help)

    # What an author registers

    def command(
        self,
        name: str,
        label: str = "",
        *,
        groups: bool = False,
        moderators: bool = False,
        hidden: bool = False,
    ) -> Callable[[Callable[Concatenate[Chat, P], R]], Callable[Concatenate[Chat, P], R]]:
        """`/name arguments`: the arguments are those of the function, read by their types. `label` is what
        the app's menu shows; with `groups` the command works in groups as well, and with `moderators` also
        in what a member says there to moderators only."""
        if not isinstance(name, str):
            raise TypeError('a command has a name: @bot.command("echo", "say it again")')
        if NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a command: letters, digits and _ only")

        def register(handler: Callable[Concatenate[Chat, P], R]) -> Callable[Concatenate[Chat, P], R]:
            arguments = arguments_of(handler, 1)
            known = self._routes.commands.get(name.lower())
            if known is not None and known.handler != self._help:
                raise ValueError(f"there is a command {name} already")
            self._routes.commands[name.lower()] = Command(
                name.lower(), label, handler, arguments, groups, moderators, hidden
            )
            return handler

        return register

    def message(
        self,
        *,
        matches: str | None = None,
        kinds: Iterable[str] = (),
        where: Where | None = None,
        groups: bool = False,
        moderators: bool = False,
    ) -> Callable[[Callable[[Chat], R]], Callable[[Chat], R]]:
        """Messages that are not commands: the first handler whose filters all match gets it. `matches` is a
        regular expression, `kinds` are contents such as "voice"; with `groups` it is for groups only, and
        with `moderators` for what members say there to moderators only, reports among it."""
        pattern = None if matches is None else re.compile(matches)

        def register(handler: Callable[[Chat], R]) -> Callable[[Chat], R]:
            route = MessageRoute(handler, pattern, frozenset(kinds), where, groups or moderators, moderators)
            self._routes.messages.append(route)
            return handler

        return register

    def on(self, kind: type[E]) -> Callable[[Callable[[Chat, E], R]], Callable[[Chat, E], R]]:
        """Any other event of a conversation: `ContactConnected`, `MessageEdited`, `Reacted` ..."""
        if kind not in EVENTS:
            raise TypeError(f"{kind.__name__} is no event of a conversation: ChatEvent names them all")
        if kind in INSTEAD:
            raise TypeError(f"handlers of events do not get {kind.__name__}: {INSTEAD[kind]}")

        def register(handler: Callable[[Chat, E], R]) -> Callable[[Chat, E], R]:
            self._routes.events.append((kind, handler))
            return handler

        return register

    def job(self, name: str) -> Callable[[Callable[[Chat, str], R]], Callable[[Chat, str], R]]:
        """The handler that `chat.remind(seconds, name, data)` runs when the time has come."""

        def register(handler: Callable[[Chat, str], R]) -> Callable[[Chat, str], R]:
            if name in self._routes.jobs:
                raise ValueError(f"there is a job {name} already")
            self._routes.jobs[name] = handler
            return handler

        return register

    def every(self, seconds: float) -> Callable[[Callable[[Outbox], R]], Callable[[Outbox], R]]:
        """Work that is repeated; what it sends and the record that it ran, by the function's name, are one
        transaction."""
        if not seconds > 0:
            raise ValueError("work is repeated after some time: say how many seconds, more than 0")

        def register(handler: Callable[[Outbox], R]) -> Callable[[Outbox], R]:
            name = getattr(handler, "__name__", "")
            if not name.isidentifier():
                raise TypeError("repeated work is known by the name of its function: it needs one")
            if any(one.name == name for one in self._every):
                raise ValueError(f"there is repeated work called {name} already")
            self._every.append(Every(name, seconds, handler))
            return handler

        return register

    def audience(self, name: str) -> Callable[[Audience], Audience]:
        """Who gets a broadcast: a function of the contact."""

        def register(chosen: Audience) -> Audience:
            if name in self._audiences:
                raise ValueError(f"there is an audience {name} already")
            self._audiences[name] = chosen
            return chosen

        return register

    def middleware(self, around: Middleware) -> Middleware:
        """Runs around every handler: `async def around(chat, proceed): await proceed()`."""
        self._routes.middleware.append(around)
        return around

    def on_request(self, decision: AskedDecision) -> AskedDecision:
        """Decides who may become a contact; without it, everybody."""
        self._routes.asked = decision
        return decision

    def on_invitation(self, decision: OfferDecision) -> OfferDecision:
        """Decides which groups are joined; without it, all if the bot has `groups`."""
        self._routes.offered = decision
        return decision

    def on_error(self, handler: Callable[[Chat, Exception], R]) -> Callable[[Chat, Exception], R]:
        """Called when a handler has failed for the last time, before its message is set aside."""
        self._routes.failed = handler
        return handler

    # Running

    def run(self) -> None:
        """Open the store, make or find the address, print it, and answer until Ctrl-C."""
        from blindpost.bot.running import run

        run(self)

    @property
    def chats(self) -> Chats:
        """The chats below, while the bot is open."""
        if self._chats is None:
            raise RuntimeError(CLOSED)
        return self._chats

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Run inside another program: gives the link of the address, and answers until the block ends."""
        opened = Agent.open(self.store, self._servers, passphrase=self._passphrase, config=self._config)
        async with opened as agent:
            self._chats = Chats(agent, self._profile(), now=self._now)
            jobs_came = asyncio.Event()
            deaths = Deaths(agent, self.store.with_name(f"{self.store.name}-handled"))
            try:
                await deaths.load()
            except BaseException:
                deaths.close()
                raise
            handling = Handling(
                self._chats, self._routes, self._now, welcome=self._welcome, groups=self._groups
            )
            self._workers = Workers(
                self._chats,
                handling.handle,
                handling.give_up,
                handling.put_aside,
                jobs_came.set,
                self.metrics,
                deaths,
                patience=self._patience,
                most=self._at_once,
            )
            self._broadcasts = Broadcasts(self._chats, self._audiences, self.metrics, self._now)
            timing = Timing(
                self._chats, self._workers, handling.put_aside, self.metrics, self._now, jobs_came
            )
            work = [self._listen(), timing.keep(), self._broadcasts.resume()]
            work += [timing.repeat(one) for one in self._every]
            work += [self._tidy()]
            tasks = [asyncio.create_task(one) for one in work]
            self.broken = asyncio.get_running_loop().create_future()
            for task in tasks:
                task.add_done_callback(self._ended)
            try:
                link = await self._address(tasks)
                self.metrics.contacts = agent.records.count("chat.contacts")
                yield str(link)
            finally:
                for task in tasks:
                    task.cancel()
                await self._broadcasts.close()
                await asyncio.wait(tasks)
                await self._workers.drain(self._drain_s)
                deaths.close()
                self.broken.cancel()
                self._chats = None

    async def _address(self, tasks: list[asyncio.Task[None]]) -> CreatedLink:
        """The link, with what it shows. A router that is away, or has lost the address, keeps nobody from
        being answered: what the link shows is then changed later."""
        try:
            return await self.chats.address(self._welcome)
        except NetworkError as error:
            link = self.chats.link
            if link is None:
                raise
            log.error("what the address shows cannot be changed yet: %s", error)
            later = asyncio.create_task(self._show_later())
            later.add_done_callback(self._ended)
            tasks.append(later)
            return link

    async def _show_later(self) -> None:
        while True:
            await asyncio.sleep(SHOW_S)
            with contextlib.suppress(NetworkError, StoreFailedError):
                await self.chats.address(self._welcome)
                return

    async def _tidy(self) -> None:
        """Strangers who ask and never come must not fill the store."""
        while True:
            try:
                forgotten = await self.chats.agent.lasting(self.chats.forget_unfinished)
            except (AgentError, WireError) as error:  # suspended, or a row that cannot be read
                log.warning("contacts who never connected are forgotten later: %s", error)
            else:
                if forgotten:
                    log.info("contacts who never connected are forgotten: %d", forgotten)
            await asyncio.sleep(TIDY_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handlers do not see background failures, so the program must be told."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("the bot cannot go on", exc_info=error)
            if self.broken is not None and not self.broken.done():
                self.broken.set_exception(error)

    def _profile(self) -> Profile:
        yes, no = Preference(Allow.YES.value), Preference(Allow.NO.value)
        preferences = Preferences(yes, no, yes, no, no, no, self._routes.menu())
        return Profile(
            self.name,
            description=self._description,
            image=self._image,
            peer_type=BOT,
            preferences=preferences,
        )

    # From the program

    def contacts(self) -> Iterator[Contact]:
        """All connected contacts."""
        return (one for one in self.chats.contacts() if one.state is ContactState.CONNECTED)

    def state_of(self, conversation: Conversation | str, kind: type[T]) -> T:
        """The state of a conversation, for reading."""
        target = conversation if isinstance(conversation, str) else conversation.id
        data = self.chats.agent.records.get(STATES, state_key(target, kind))
        return kind() if data is None else load_state(kind, data)

    def shared_state(self, kind: type[T]) -> T:
        """The state that all conversations share, for reading."""
        return self.state_of(EVERYBODY, kind)

    async def tell(self, to: Conversation | str, text: str, *, key: str | None = None) -> None:
        """Send a text from outside any handler; with a `key`, once, however often this is called. Nothing is
        sent where the conversation has ended; `LookupError` if there is none, `NotConnectedError` if it has
        not begun."""
        target = to if isinstance(to, str) else to.id
        found = self.chats.contact(target) or self.chats.group(target)
        if found is None:
            raise LookupError(f"{target!r} is the id of no contact and no group")
        if found.state in (ContactState.CONNECTING, GroupState.JOINING):
            raise NotConnectedError("nothing can be said: the other side is not connected yet")
        outbox = Outbox(self.chats, self._now())
        outbox.tell(to, text, key=key)
        await self._commit(outbox)

    async def new_address(self) -> str:
        """Another link, in place of one that its router lost or that too many know; contacts stay."""
        return str(await self.chats.new_address(self._welcome))

    async def broadcast(self, text: str, *, key: str, audience: str | None = None) -> Progress:
        """Start sending a text to all contacts, or to an audience; each gets it once, even across restarts.
        The same `key` again gives the same broadcast; `await progress.finished()` waits for its end."""
        if self._broadcasts is None:
            raise RuntimeError(CLOSED)
        return await self._broadcasts.begin(key, text, audience)

    def set_aside(self) -> list[SetAside]:
        """Messages whose handlers kept failing."""
        return [aside_from(key, data) for key, data in self.chats.agent.records.scan(ASIDE)]

    async def forget_aside(self, key: str) -> None:
        """Delete one of them, once somebody has looked at it."""
        await self.chats.agent.transact(lambda tx: tx.delete(ASIDE, key))

    async def _commit(self, outbox: Outbox) -> None:
        draft = self.chats.draft()
        outbox.into(draft)
        await self.chats.commit(draft)
        self.metrics.sent += outbox.count

    # At work

    async def _listen(self) -> None:
        assert self._workers is not None
        async for unit in self.chats.units():
            if not unit.key:
                _log(unit.events)
                _end_if_broken(unit.events)
                for event in unit.events:
                    if isinstance(event, AgentNews):
                        await self._heard(event.event)
                    elif (
                        isinstance(event, Trouble) and event.chat is not None and self._routes.hears(Trouble)
                    ):
                        await self._workers.put(Task(event.chat.id, (event,), unit.done))
                continue
            await self._workers.put(Task(unit.key, unit.events, unit.done, _said(unit.events)))

    async def _heard(self, news: Event) -> None:
        """What the agent tells of connections, and nobody else looks at."""
        match news:
            case RatchetSync():
                await self.chats.agent.lasting(partial(self._repair, news))
            case SubscriptionsFailed(errors):
                lost = {conn.id: error for conn, error in errors}
                if (error := lost.pop(self.chats.address_id or "", None)) is not None:
                    log.error(LOST_ADDRESS, error)
                if lost:
                    log.error(LOST_CONTACTS, len(lost), next(iter(lost.values())))

    async def _repair(self, news: RatchetSync) -> None:
        """A contact who went back to a backup cannot be read: nobody is here to press a button, so the bot
        offers new keys, once an hour at most."""
        if news.state is not SyncState.REQUIRED:
            return
        conn_id, now = news.conn.id, self._now()
        self._repaired = {one: at for one, at in self._repaired.items() if now - REPAIR_S < at <= now}
        if conn_id in self._repaired:
            return
        self._repaired[conn_id] = now
        try:
            await news.conn.synchronize()
        except AgentError as error:
            log.warning("the ratchets of a contact stay out of step: %s", error)

    async def _help(self, chat: Chat) -> None:
        chat.reply(self._routes.help())


def _log(events: Iterable[ChatEvent]) -> None:
    """Log events about routers and failures, for the operator of the bot."""
    for event in events:
        if isinstance(event, Trouble):
            log.warning("%s", event.error)
        else:
            log.debug("%s", event)


def _end_if_broken(events: Iterable[ChatEvent]) -> None:
    """A store that takes nothing until the next start: whoever runs the bot starts it again."""
    for event in events:
        if isinstance(event, Trouble) and isinstance(event.error, CriticalError) and not event.error.retried:
            raise event.error


def _said(events: Iterable[ChatEvent]) -> str:
    return "\n".join(event.message.text for event in events if isinstance(event, MessageReceived))
