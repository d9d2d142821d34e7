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
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, get_args

from blindpost.agent import Agent, AgentConfig, CriticalError, Transaction
from blindpost.bot.broadcasts import Audience, Broadcasts, Progress
from blindpost.bot.chat import EVERYBODY, STATES, Chat, Outbox, state_key
from blindpost.bot.deaths import Deaths
from blindpost.bot.jobs import JOBS, Job, due_of, due_prefix, job_from
from blindpost.bot.metrics import Metrics
from blindpost.bot.routes import NAME, Command, MessageRoute, Middleware, Outcome, Routes, Where
from blindpost.bot.setting_aside import ASIDE, SetAside, aside_bytes, aside_from, reason_of
from blindpost.bot.typed import arguments_of, load_state
from blindpost.bot.working import Patience, Task, Workers
from blindpost.chat import (
    Allow,
    Asked,
    ChatEvent,
    Chats,
    Contact,
    ContactConnected,
    ContactGone,
    ContactState,
    Conversation,
    Draft,
    Group,
    GroupOffered,
    Incoming,
    Member,
    MessageEdited,
    MessageReceived,
    Preference,
    Preferences,
    Profile,
    Trouble,
)
from blindpost.chat.codec.profiles import BOT
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

log = logging.getLogger("blindpost.bot")

P = ParamSpec("P")
R = TypeVar("R", bound=Outcome)
E = TypeVar("E", bound=Value)
T = TypeVar("T")
AskedDecision = Callable[[Asked], Awaitable[bool] | bool]
OfferDecision = Callable[[GroupOffered], Awaitable[bool] | bool]

SORRY = "Something went wrong here. Your message is kept, and somebody will look at it."
SLEEP_MAX_S = 60.0
LIVE = "bot.live"
"""Messages that somebody is still typing."""
EVENTS = frozenset(get_args(ChatEvent))
CLOSED = "the bot is not open: use `async with bot.open()`, or call `run()`"


@dataclass(frozen=True, slots=True)
class Every:
    """Work that is repeated."""

    name: str
    seconds: float
    handler: Callable[[Outbox], Outcome]


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
        self._chats: Chats | None = None
        self._broadcasts: Broadcasts | None = None
        self._workers: Workers | None = None
        self._job_came: asyncio.Event | None = None
        self.broken: asyncio.Future[None] | None = None
        """Raises if the bot, while it is open, cannot continue."""
        self.command("help", "what I can do")(self._help)

    # What an author registers

    def command(
        self, name: str, label: str = "", *, groups: bool = False, hidden: bool = False
    ) -> Callable[[Callable[Concatenate[Chat, P], R]], Callable[Concatenate[Chat, P], R]]:
        """`/name arguments`: the arguments are those of the function, read by their types. `label` is what
        the app's menu shows; with `groups` the command works in groups as well."""
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
                name.lower(), label, handler, arguments, groups, hidden
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
    ) -> Callable[[Callable[[Chat], R]], Callable[[Chat], R]]:
        """Messages that are not commands: the first handler whose filters all match gets it. `matches` is a
        regular expression, `kinds` are contents such as "voice"; with `groups` it is for groups only."""
        pattern = None if matches is None else re.compile(matches)

        def register(handler: Callable[[Chat], R]) -> Callable[[Chat], R]:
            self._routes.messages.append(MessageRoute(handler, pattern, frozenset(kinds), where, groups))
            return handler

        return register

    def on(self, kind: type[E]) -> Callable[[Callable[[Chat, E], R]], Callable[[Chat, E], R]]:
        """Any other event of a conversation: `ContactConnected`, `MessageEdited`, `Reacted` ..."""
        if kind not in EVENTS:
            raise TypeError(f"{kind.__name__} is no event of a conversation: ChatEvent names them all")

        def register(handler: Callable[[Chat, E], R]) -> Callable[[Chat, E], R]:
            self._routes.events.append((kind, handler))
            return handler

        return register

    def job(self, name: str) -> Callable[[Callable[[Chat, str], R]], Callable[[Chat, str], R]]:
        """The handler that `chat.remind(seconds, name, data)` runs when the time has come."""

        def register(handler: Callable[[Chat, str], R]) -> Callable[[Chat, str], R]:
            self._routes.jobs[name] = handler
            return handler

        return register

    def every(self, seconds: float) -> Callable[[Callable[[Outbox], R]], Callable[[Outbox], R]]:
        """Work that is repeated; what it sends and the record that it ran are one transaction."""
        if not seconds > 0:
            raise ValueError("work is repeated after some time: say how many seconds, more than 0")

        def register(handler: Callable[[Outbox], R]) -> Callable[[Outbox], R]:
            self._every.append(Every(handler.__name__, seconds, handler))
            return handler

        return register

    def audience(self, name: str) -> Callable[[Audience], Audience]:
        """Who gets a broadcast: a function of the contact."""

        def register(chosen: Audience) -> Audience:
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
            self._job_came = asyncio.Event()
            deaths = Deaths(agent, self.store.with_name(f"{self.store.name}-handled"))
            try:
                await deaths.load()
            except BaseException:
                deaths.close()
                raise
            self._workers = Workers(
                self._chats,
                self._handle,
                self._give_up,
                self._put_aside,
                self.metrics,
                deaths,
                patience=self._patience,
                most=self._at_once,
            )
            self._broadcasts = Broadcasts(self._chats, self._audiences, self.metrics, self._now)
            tasks = [
                asyncio.create_task(work)
                for work in (self._listen(), self._keep_time(), self._broadcasts.resume())
            ]
            tasks += [asyncio.create_task(self._repeat(one)) for one in self._every]
            self.broken = asyncio.get_running_loop().create_future()
            for task in tasks:
                task.add_done_callback(self._ended)
            try:
                link = await self._chats.address(self._welcome)
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
        """Send a text from outside any handler; with a `key`, once, however often this is called."""
        outbox = Outbox(self.chats, self._now())
        outbox.tell(to, text, key=key)
        await self._commit(outbox)

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
                continue
            await self._workers.put(Task(unit.key, unit.events, unit.done, _said(unit.events)))

    async def _handle(self, task: Task, draft: Draft) -> None:
        """Handle everything in a task; what is done about it goes into the draft."""
        jobs = False
        for event in task.events:
            outbox = await self._one(event, draft)
            if outbox is not None:
                outbox.into(draft)
                self.metrics.sent += outbox.count
                jobs = True
        if jobs and self._job_came is not None:
            self._job_came.set()

    async def _one(self, event: ChatEvent | Job, draft: Draft) -> Outbox | None:
        match event:
            case Asked():
                if self._routes.asked is None or await _decided(self._routes.asked(event)):
                    draft.accept(event)
                else:
                    draft.reject(event)
                return None
            case GroupOffered():
                wanted = self._groups
                if self._routes.offered is not None:
                    wanted = await _decided(self._routes.offered(event))
                if wanted:
                    draft.enter(event)
                return None
            case Job():
                return await self._job(event)
            case MessageReceived(conversation, message, member) if message.live:
                draft.add(_remembering(LIVE, _live_key(conversation, message), b""))
                return None
            case MessageEdited(conversation, message, member) if self._is_live(conversation, message):
                if message.live:
                    return None
                key = _live_key(conversation, message)
                draft.add(lambda tx: tx.delete(LIVE, key))
                self.metrics.received += 1
                return await self._said(conversation, message, member)
            case MessageReceived(conversation, message, member):
                self.metrics.received += 1
                return await self._said(conversation, message, member)
            case ContactConnected(contact, first):
                return await self._connected(event, contact, first)
        return await self._other(event)

    def _is_live(self, conversation: Conversation, message: Incoming) -> bool:
        """Whether somebody is still typing this message: it is handled once it is complete."""
        return self.chats.agent.records.get(LIVE, _live_key(conversation, message)) is not None

    async def _connected(
        self, event: ContactConnected, contact: Contact, first: Incoming | None
    ) -> Outbox | None:
        self.metrics.connected += 1
        self.metrics.contacts += 1
        chat = Chat(self.chats, self._now(), contact, first)
        if self._welcome is not None:
            chat.welcome(self._welcome)
        await self._tell_handlers(event, chat)
        if first is not None:
            self.metrics.received += 1
            await self._route(chat, first)
        return chat

    async def _said(self, conversation: Conversation, message: Incoming, member: Member | None) -> Outbox:
        chat = Chat(self.chats, self._now(), conversation, message, member)
        await self._route(chat, message)
        return chat

    async def _route(self, chat: Chat, message: Incoming) -> None:
        found = self._routes.call(message, chat.group is not None)
        if isinstance(found, str):
            chat.reply(found)
        elif found is not None:
            handler, arguments = found
            await self._around(chat, lambda: _called(handler, chat, *arguments))

    async def _around(self, chat: Chat, handler: Callable[[], Awaitable[None]]) -> None:
        """The handler wrapped in all middleware, the first registered outermost."""
        for around in reversed(self._routes.middleware):
            handler = _wrapped(around, chat, handler)
        await handler()

    async def _other(self, event: ChatEvent) -> Outbox | None:
        conversation = _conversation_of(event)
        if isinstance(event, ContactGone):
            self.metrics.left += 1
            self.metrics.contacts -= 1
        if conversation is None:
            return None
        chat = Chat(self.chats, self._now(), conversation, member=getattr(event, "member", None))
        await self._tell_handlers(event, chat)
        return chat

    async def _tell_handlers(self, event: ChatEvent, chat: Chat) -> None:
        for kind, handler in self._routes.events:
            if isinstance(event, kind):
                await _called(handler, chat, event)

    async def _job(self, job: Job) -> Outbox | None:
        handler = self._routes.jobs.get(job.name)
        conversation = self.chats.contact(job.conversation) or self.chats.group(job.conversation)
        if conversation is None:
            return None
        if handler is None:
            raise LookupError(f"there is no handler for the job {job.name}: register one with bot.job")
        chat = Chat(self.chats, self._now(), conversation)
        await self._around(chat, lambda: _called(handler, chat, job.data))
        self.metrics.jobs += 1
        return chat

    async def _give_up(self, task: Task, failure: Exception, draft: Draft) -> None:
        conversation = next(
            (found for one in task.events if (found := self._place_of(one)) is not None), None
        )
        if conversation is None:
            return
        chat = Chat(self.chats, self._now(), conversation)
        if self._routes.failed is not None:
            await _called(self._routes.failed, chat, failure)
        elif isinstance(conversation, Contact):
            chat.reply(SORRY)
        chat.into(draft)

    def _place_of(self, event: ChatEvent | Job) -> Conversation | None:
        if isinstance(event, Job):
            return self.chats.contact(event.conversation) or self.chats.group(event.conversation)
        return _conversation_of(event)

    def _put_aside(self, task: Task, failure: Exception, draft: Draft) -> None:
        now = self._now()
        record = SetAside("", task.key, now, task.text, reason_of(failure))
        key = f"{due_prefix(now)} {task.key}"
        draft.add(lambda tx: tx.put(ASIDE, key, aside_bytes(record)))

    # Time

    async def _keep_time(self) -> None:
        """Run jobs when they are due."""
        assert self._workers is not None
        assert self._job_came is not None
        under_way: set[str] = set()
        records = self.chats.agent.records
        while True:
            self._job_came.clear()
            now = self._now()
            for key, data in records.scan(JOBS, until=due_prefix(now + 0.001)):
                if key not in under_way:
                    under_way.add(key)
                    settle = self._finished(key, under_way)
                    try:
                        job = job_from(data)
                    except WireError as error:
                        await self._drop_job(data, error, settle)
                        continue
                    await self._workers.put(Task(job.conversation, (job,), settle, f"{job.name} {job.data}"))
            coming = next(iter(records.scan(JOBS, after=due_prefix(now + 0.001))), None)
            pause = SLEEP_MAX_S if coming is None else due_of(coming[0]) - now
            try:
                async with asyncio.timeout(min(SLEEP_MAX_S, max(0.001, pause))):
                    await self._job_came.wait()
            except TimeoutError:
                continue

    async def _drop_job(
        self, data: bytes, error: WireError, settle: Callable[[Draft], Awaitable[None]]
    ) -> None:
        """A row that cannot be read is set aside; it must not end the bot at every start."""
        log.error("a reminder cannot be read, and is set aside")
        draft = self.chats.draft()
        self._put_aside(Task("", (), settle, data.decode(errors="replace")), error, draft)
        await settle(draft)

    def _finished(self, key: str, under_way: set[str]) -> Callable[[Draft], Awaitable[None]]:
        async def settle(draft: Draft) -> None:
            whole = self.chats.draft()
            whole.extend(draft)
            whole.add(lambda tx: tx.delete(JOBS, key))
            await self.chats.commit(whole)
            under_way.discard(key)

        return settle

    async def _repeat(self, work: Every) -> None:
        """Repeat something; when it last ran is remembered across restarts."""
        space = "bot.every"
        while True:
            stored = self.chats.agent.records.get(space, work.name)
            now_s = self._now()
            due = 0.0 if stored is None else float(stored) + work.seconds
            await asyncio.sleep(min(max(0.0, due - now_s), work.seconds))  # the clock may have been ahead
            outbox, now = Outbox(self.chats, self._now()), str(self._now()).encode()
            try:
                await _called(work.handler, outbox)
            except Exception:
                log.exception("%s failed, and is done again at its next time", work.name)
                outbox = Outbox(self.chats, self._now())
            draft = self.chats.draft()
            outbox.into(draft)
            draft.add(_remembering(space, work.name, now))
            await self.chats.commit(draft)
            self.metrics.sent += outbox.count

    async def _help(self, chat: Chat) -> None:
        chat.reply(self._routes.help())


def _live_key(conversation: Conversation, message: Incoming) -> str:
    return f"{conversation.id} {(message.id or b'').hex()}"


def _remembering(space: str, key: str, value: bytes) -> Callable[[Transaction], None]:
    return lambda tx: tx.put(space, key, value)


def _wrapped(
    around: Middleware, chat: Chat, inner: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    return lambda: around(chat, inner)


async def _called(handler: Callable[..., Outcome], *arguments: object) -> None:
    """Run an async handler here, a plain one in its own thread."""
    if inspect.iscoroutinefunction(handler):
        await handler(*arguments)
        return
    outcome = await asyncio.to_thread(handler, *arguments)
    if inspect.isawaitable(outcome):
        await outcome


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


async def _decided(decision: Awaitable[bool] | bool) -> bool:
    return await decision if inspect.isawaitable(decision) else bool(decision)


def _said(events: Iterable[ChatEvent]) -> str:
    return "\n".join(event.message.text for event in events if isinstance(event, MessageReceived))


def _conversation_of(event: ChatEvent) -> Conversation | None:
    for name in ("chat", "contact", "group"):
        found = getattr(event, name, None)
        if isinstance(found, Contact | Group):
            return found
    return None
