"""Work for later, as it is stored: in order of when it is due."""

from __future__ import annotations

from blindpost.chat.codec.fields import Fields, json_bytes, json_value, written
from blindpost.wire.frozen import dataclass

JOBS = "bot.jobs"
BACKLOG = "bot.backlog"
"""Jobs that are due while many others of their conversation are under way: by conversation, then in order."""
LONGEST_S = 100 * 365 * 86_400.0
"""No work is for later than in a hundred years; the number may be one that somebody typed."""
_DIGITS = 13
_LAST_MS = 10**_DIGITS - 1


def checked_pause(seconds: float) -> float:
    """A time to wait that can be stored and ends."""
    if not seconds <= LONGEST_S:
        raise ValueError(f"at most a hundred years can be waited for, not {seconds} seconds")
    return max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class Job:
    """Which handler is to run when, in which conversation, with what."""

    due: float
    conversation: str
    name: str
    data: str = ""


def due_prefix(due: float) -> str:
    """Keys are in order of time."""
    return f"{min(max(0, int(due * 1000)), _LAST_MS):0{_DIGITS}d}"


def due_of(key: str) -> float:
    """When the job under this key is due."""
    return int(key[:_DIGITS]) / 1000


def job_key(job: Job, mark: str) -> str:
    return f"{due_prefix(job.due)} {mark}"


def backlog_prefix(conversation: str) -> str:
    """Of the keys of one conversation, whatever its id is like."""
    return f"{conversation.encode().hex()} "


def backlogged(prefix: str) -> str:
    """The conversation that the keys with this prefix are of."""
    return bytes.fromhex(prefix).decode()


def job_bytes(job: Job) -> bytes:
    return json_bytes(written(due=int(job.due * 1000), chat=job.conversation, name=job.name, data=job.data))


def job_from(data: bytes) -> Job:
    fields = Fields(json_value(data))
    return Job(fields.number("due") / 1000, fields.text("chat"), fields.text("name"), fields.text("data"))
