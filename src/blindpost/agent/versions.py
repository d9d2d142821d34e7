"""The versions that an agent speaks."""

from __future__ import annotations

from blindpost.wire.e2e import E2E_VERSIONS
from blindpost.wire.frozen import dataclass
from blindpost.wire.links.full import AGENT_VERSIONS
from blindpost.wire.queue_addresses import CLIENT_VERSIONS
from blindpost.wire.versions import VersionRange


@dataclass(frozen=True, slots=True)
class Versions:
    """What this agent speaks; fewer than all for tests of older peers."""

    agent: VersionRange = AGENT_VERSIONS
    client: VersionRange = CLIENT_VERSIONS
    e2e: VersionRange = E2E_VERSIONS
