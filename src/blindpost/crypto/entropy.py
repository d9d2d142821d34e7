"""Where randomness comes from: a function that every caller is given, so that tests are repeatable."""

from __future__ import annotations

import os
from collections.abc import Callable

Entropy = Callable[[int], bytes]
"""That many unpredictable bytes."""


def system_entropy(count: int) -> bytes:
    """The operating system's generator, the only one for real use."""
    return os.urandom(count)
