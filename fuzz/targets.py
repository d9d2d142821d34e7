"""All targets by name."""

from __future__ import annotations

from fuzz.decoders import DECODERS
from fuzz.faces import FACES
from fuzz.sessions import SESSIONS
from fuzz.target import Target

TARGETS: dict[str, Target] = {target.name: target for target in (*DECODERS, *SESSIONS, *FACES)}
