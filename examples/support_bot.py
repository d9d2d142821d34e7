"""A support desk: many people write to one address, a few answer.

    DESK_PASSWORD=... python examples/support_bot.py desk.db smp://FINGERPRINT@smp.example.org

Staff say `/staff PASSWORD` once. What anybody else writes goes to all of them with a number;
`/re NUMBER TEXT` answers. Neither side learns the other's name from the bot, beyond what they say.
"""

import hmac
import os
import sys
from dataclasses import dataclass, field

from blindpost.agent import AgentConfig
from blindpost.bot import Bot, Chat


@dataclass
class Desk:
    """Who answers, and which number is whose."""

    staff: list[str] = field(default_factory=list)
    customers: list[str] = field(default_factory=list)


@dataclass
class Customer:
    number: int = 0


def make(store: str, *servers: str, password: str, config: AgentConfig | None = None) -> Bot:
    bot = Bot("Support", servers=servers, store=store, welcome="What can we do for you?", config=config)

    @bot.command("staff", hidden=True)
    async def staff(chat: Chat, word: str) -> None:
        desk = chat.shared(Desk)
        if not hmac.compare_digest(word.encode(), password.encode()):
            await chat.reply("That is not the password.")
        elif chat.id not in desk.staff:
            desk.staff.append(chat.id)
            await chat.reply("You are on duty. /re NUMBER TEXT answers, /off ends it.")

    @bot.command("off", hidden=True)
    async def off(chat: Chat) -> None:
        desk = chat.shared(Desk)
        if chat.id in desk.staff:
            desk.staff.remove(chat.id)
            await chat.reply("Good night.")

    @bot.command("re", hidden=True)
    async def answer(chat: Chat, number: int, text: str) -> None:
        desk = chat.shared(Desk)
        if chat.id not in desk.staff:
            await chat.reply("I do not know /re. /help shows what I know.")
        elif not 0 < number <= len(desk.customers):
            await chat.reply(f"There is no number {number}.")
        else:
            chat.tell(desk.customers[number - 1], text)
            for other in desk.staff:
                if other != chat.id:
                    chat.tell(other, f"[{number} answered] {text}")
            chat.react("✅")

    @bot.message()
    async def ask(chat: Chat) -> None:
        desk, customer = chat.shared(Desk), chat.state(Customer)
        if not customer.number:
            desk.customers.append(chat.id)
            customer.number = len(desk.customers)
            await chat.reply(f"You are number {customer.number}. Somebody will answer here.")
        assert chat.message is not None
        for one in desk.staff:
            chat.tell(one, f"[{customer.number}] {chat.message.shown}")

    return bot


if __name__ == "__main__":
    make(*sys.argv[1:], password=os.environ["DESK_PASSWORD"]).run()
