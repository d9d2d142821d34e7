"""Bots that people talk to from the SimpleX app. What is named here is for programs; the rest is private."""

from blindpost.bot.bot import Bot
from blindpost.bot.broadcasts import Progress
from blindpost.bot.chat import Chat, Outbox, Said
from blindpost.bot.metrics import Metrics
from blindpost.bot.running import InThread
from blindpost.bot.setting_aside import SetAside
from blindpost.bot.typed import ArgumentError, StateError
from blindpost.bot.working import Patience

__all__ = [
    "ArgumentError",
    "Bot",
    "Chat",
    "InThread",
    "Metrics",
    "Outbox",
    "Patience",
    "Progress",
    "Said",
    "SetAside",
    "StateError",
]
