"""Work for later, as it is stored: in order of when it is due."""

from __future__ import annotations

from blindpost.chat.codec.fields import Fields, json_bytes, json_value, written
from blindpost.wire.frozen import dataclass

JOBS = "bot.jobs"


@dataclass(frozen=True, slots=True)
class Job:
    """Which handler is to run when, in which conversation, with what."""

    due: float
    conversation: str
    name: str
    data: str = ""


def due_prefix(due: float) -> str:
    """Keys are in order of time."""
    return f"{max(0, int(due * 1000)):013d}"


def job_key(job: Job, mark: str) -> str:
    return f"{due_prefix(job.due)} {mark}"


def job_bytes(job: Job) -> bytes:
    return json_bytes(written(due=int(job.due * 1000), chat=job.conversation, name=job.name, data=job.data))


def job_from(data: bytes) -> Job:
    fields = Fields(json_value(data))
    return Job(fields.number("due") / 1000, fields.text("chat"), fields.text("name"), fields.text("data"))
