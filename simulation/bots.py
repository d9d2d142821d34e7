"""A bot with a contact address, and a person who asks it: each question is answered exactly once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blindpost.agent import Agent, AgentConfig, AgentError, InactiveError, SessionOptions
from blindpost.agent.store.database import AgentStore
from blindpost.bot import Bot, Chat
from blindpost.chat import Chats, ContactConnected, MessageReceived, Profile, Trouble, Unit
from blindpost.client.options import SmpOptions
from blindpost.engine.loop import StoreFailedError
from blindpost.store.contract import Durability
from blindpost.testing.agents import ReusedPairs
from simulation.agents import let_go, under_way, unsubscribed
from simulation.faults import PLANNED
from simulation.model import ViolationError
from simulation.party import Party, Surroundings
from simulation.rows import wrong_in_agent

BOT, PERSON = "ada", "paul"
QUESTION, ANSWER = "question", "answer to question"
AGAIN_S, LOOK_S = 7.0, 0.05


@dataclass
class Talk:
    """What was asked, by number, and what was answered."""

    asked: int = 0
    taken: set[int] = field(default_factory=set)
    """Those that the person's agent took: they must be answered."""
    answers: dict[int, bytes | None] = field(default_factory=dict)
    """Which message answered each."""
    acknowledging: set[int] = field(default_factory=set)
    """Those whose answers the person began to acknowledge: if it died then, they may come again or not."""
    done: set[int] = field(default_factory=set)
    """Those whose answers were acknowledged."""

    def ask(self) -> int:
        self.asked += 1
        return self.asked

    def answered(self, text: str, message_id: bytes | None) -> int:
        """The person was given this; the same message may come again until it is acknowledged."""
        words, _, digits = text.rpartition(" ")
        if words != ANSWER or not digits.isdigit() or not 1 <= int(digits) <= self.asked:
            raise ViolationError(f"the bot said {text!r}, which nobody asked for")
        number = int(digits)
        if self.answers.setdefault(number, message_id) != message_id:
            raise ViolationError(f"question {number} was answered twice")
        if number in self.done:
            raise ViolationError(f"the answer to question {number} came again after it was acknowledged")
        return number

    @property
    def missing(self) -> set[int]:
        return self.taken - self.answers.keys()


class _OnAgent(Party):
    """What a bot and a person have in common: a program on an agent."""

    def __init__(self, run: Surroundings, name: str, servers: Sequence[str]) -> None:
        super().__init__(run, name)
        self._servers = servers
        self._agent: Agent
        self._store: AgentStore | None = None
        self._closing = asyncio.Event()

    def _config(self) -> AgentConfig:
        entropy = self.entropy()
        client = SmpOptions(network=self.run.network, now=self.now, entropy=entropy)
        return AgentConfig(
            sessions=SessionOptions(client=client),
            durability=Durability.OS,
            pair_maker=ReusedPairs(),
            now=self.now,
            entropy=entropy,
            chance=self.chance(),
        )

    def _opened(self, agent: Agent) -> None:
        self._agent, self._store = agent, (store := agent._ground.store)
        file = store._file
        real: Callable[[], None] = file.commit
        file.commit = lambda: self.committing(file.rollback, real)  # type: ignore[method-assign]

    @property
    def ready(self) -> bool:
        return self.alive and self._store is not None

    async def end(self) -> None:
        self._closing.set()

    def files_closed(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            let_go(store)

    def mended(self) -> None:
        self.empty_disk()

    def unsettled(self) -> str | None:
        if not self.ready:
            return "it is not open"
        assert self._store is not None
        if waiting := under_way(self._store):
            return f"{waiting} commands, deliveries or queues are under way"
        return unsubscribed(self._agent)

    async def wrong(self) -> str | None:
        assert self._store is not None
        return wrong_in_agent(self._store.reading.sql)

    def receives_from(self) -> list[tuple[str, bytes]]:
        assert self._store is not None
        rows = self._store.reading.sql.execute("SELECT host, rcv_id FROM rcv_queues").fetchall()
        return [(host, bytes(rcv_id)) for host, rcv_id in rows]


class BotParty(_OnAgent):
    """Answers each message, at an address that anybody may use."""

    kind = "bot"

    def __init__(self, run: Surroundings, servers: Sequence[str]) -> None:
        super().__init__(run, BOT, servers)
        self.link: str | None = None
        self._bot: Bot

    async def live(self) -> None:
        self._closing = asyncio.Event()
        self._bot = bot = Bot(
            "Ada", servers=self._servers, store=self.run.folder / f"{self.name}.db", config=self._config()
        )

        @bot.message()
        async def answer(chat: Chat) -> None:
            await asyncio.sleep(0)  # whoever dies here has answered nothing
            await chat.reply(f"answer to {chat.text}")

        while not self._closing.is_set():
            try:
                async with bot.open() as link:
                    self._opened(bot.chats.agent)
                    self.link = link
                    assert bot.broken is not None
                    closing = asyncio.create_task(self._closing.wait())
                    await asyncio.wait((closing, bot.broken), return_when=asyncio.FIRST_COMPLETED)
                    if not self._closing.is_set():
                        self.run.violated(f"{self.name} cannot go on: {bot.broken.exception()!r}")
                        await self._closing.wait()
            except (AgentError, StoreFailedError) as error:
                self.run.note(f"{self.name} has no address yet: {error}")
                await asyncio.sleep(AGAIN_S)

    def files_closed(self) -> None:
        super().files_closed()
        workers = self._bot._workers
        if workers is not None:
            workers._deaths.close()

    def unsettled(self) -> str | None:
        if (why := super().unsettled()) is not None:
            return why
        if aside := self._bot.set_aside():
            return f"{len(aside)} questions are set aside"
        return None


class PersonParty(_OnAgent):
    """Joins the bot's address, asks, and hears."""

    kind = "person"

    def __init__(self, run: Surroundings, servers: Sequence[str], bot: BotParty) -> None:
        super().__init__(run, PERSON, servers)
        self.talk = Talk()
        self._ada = bot
        self._contact: str | None = None
        """Where it asks; once it knows one, it stays."""
        self._chats: Chats
        self._asking = asyncio.Lock()

    async def live(self) -> None:
        self._closing, self._asking = asyncio.Event(), asyncio.Lock()
        opened = Agent.open(self.run.folder / f"{self.name}.db", self._servers, config=self._config())
        async with opened as agent:
            self._opened(agent)
            self._chats = Chats(agent, Profile("Paul"), now=self.now)
            beside = [asyncio.create_task(work) for work in (self._join(), self._hear())]
            await self._closing.wait()
            for task in beside:
                task.cancel()

    async def _join(self) -> None:
        """Until the bot has an address and the agent has taken it; who died then may have joined already."""
        while self._contact is None and not any(True for _ in self._chats.contacts()):
            if self._ada.link is None:
                await asyncio.sleep(LOOK_S)
                continue
            with contextlib.suppress(AgentError, StoreFailedError):
                await self._chats.join(self._ada.link)
                return
            await asyncio.sleep(AGAIN_S)

    async def _hear(self) -> None:
        with contextlib.suppress(InactiveError):
            async for unit in self._chats.units():
                try:
                    await self._take(unit)
                except ViolationError as violation:
                    self.run.violated(str(violation))

    async def _take(self, unit: Unit) -> None:
        heard = []
        for event in unit.events:
            match event:
                case MessageReceived(_, message, _):
                    self.run.note(f"{self.name} hears: {message.text}")
                    heard.append(self.talk.answered(message.text, message.id))
                case ContactConnected(contact, _):
                    self.run.note(f"{self.name} is connected to {BOT}")
                    self._contact = self._contact or contact.id
                case Trouble(_, error, _) if PLANNED not in str(error):
                    raise ViolationError(f"{self.name} is told of a failure: {error!r}")
        self.talk.acknowledging.update(heard)
        await self._chats.agent.lasting(unit.done)
        self.talk.done.update(heard)

    async def ask(self, count: int) -> None:
        if self._contact is None:
            return
        async with self._asking:
            for _ in range(count):
                number = self.talk.ask()
                try:
                    contact = self._chats.contact(self._contact)
                    assert contact is not None
                    await self._chats.say(contact, f"{QUESTION} {number}")
                except (AgentError, StoreFailedError) as error:
                    self.run.note(f"{self.name} may not ask {number}: {error}")
                else:
                    self.talk.taken.add(number)

    def unsettled(self) -> str | None:
        if (why := super().unsettled()) is not None:
            return why
        if self._contact is None:
            return f"it is not connected to {BOT}"
        if missing := self.talk.missing:
            return f"questions are not answered: {sorted(missing)}"
        if open_still := self.talk.answers.keys() - self.talk.acknowledging:
            return f"answers are not acknowledged: {sorted(open_still)}"
        return None
