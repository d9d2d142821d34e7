"""Messages are encrypted to their recipients at the last moment, wherever they leave."""

from __future__ import annotations

from blindpost.crypto.boxes import nonce_of, seal_parts_once
from blindpost.crypto.secret import Secret
from blindpost.router.model import StoredMessage
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.messages import QuotaMarker, message_parts, write_message
from blindpost.wire.smp.responses import MSG
from blindpost.wire.smp.versions import MSG_PADDED_SIZE


def sealed_message(secret: Secret, message: StoredMessage) -> MSG:
    """A message to its recipient, with its id as the nonce."""
    if message.body is None:
        marker = Writer()
        write_message(marker, QuotaMarker(message.seconds))
        parts, size = marker.parts, marker.size
    else:
        parts = message_parts(message.seconds, message.notify, message.body)
        size = len(parts[0]) + len(message.body)
    box = seal_parts_once(secret.raw, nonce_of(message.msg_id), parts, size, MSG_PADDED_SIZE)
    return MSG(message.msg_id, memoryview(box))
