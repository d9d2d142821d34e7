"""What each column of the agent's tables holds, and to which row a sealed value is bound.

A sealed value opens only as the column of the row that it was written to: the columns that are named beside
it identify that row. What is looked for without being read is stored as a keyed hash.
"""

from __future__ import annotations

SEALED: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
    "connections": {("conn_id",): ("last_rcv_msg_hash", "last_snd_msg_hash", "own_conn_info")},
    "rcv_queues": {
        ("conn_id", "rcv_id"): (
            "rcv_private_key",
            "rcv_dh_secret",
            "e2e_priv_key",
            "e2e_dh_secret",
            "link_key",
            "link_priv_sig_key",
            "link_enc_fixed_data",
            "ntf_public_key",
            "ntf_private_key",
            "rcv_ntf_dh_secret",
        )
    },
    "rcv_queue_requests": {
        ("conn_id", "replace_rcv_queue_id"): (
            "rcv_private_key",
            "rcv_dh_key",
            "e2e_priv_key",
            "link_priv_sig_key",
            "ntf_private_key",
            "ntf_dh_key",
        )
    },
    "snd_queues": {("conn_id", "snd_queue_id"): ("snd_private_key", "e2e_pub_key", "e2e_dh_secret")},
    "ratchets": {("conn_id",): ("x3dh_params", "x3dh_pub_params", "ratchet_state")},
    "skipped_messages": {("conn_id",): ("header_key",), ("conn_id", "msg_n"): ("msg_key",)},
    "conn_confirmations": {
        ("confirmation_id",): (
            "sender_key",
            "e2e_snd_pub_key",
            "sender_conn_info",
            "smp_reply_queues",
            "own_conn_info",
        )
    },
    "conn_invitations": {("invitation_id",): ("cr_invitation", "recipient_conn_info", "own_conn_info")},
    "messages": {("conn_id", "internal_id"): ("msg_body",)},
    "rcv_messages": {("conn_id", "internal_id"): ("internal_hash", "external_prev_snd_hash", "integrity")},
    "snd_messages": {("conn_id", "internal_id"): ("internal_hash", "previous_msg_hash", "msg_encrypt_key")},
    "commands": {("conn_id", "command_tag", "created_at"): ("command",)},
    "inv_short_links": {("host", "port", "link_id"): ("link_key", "snd_private_key")},
    "client_services": {
        ("user_id", "host", "port"): ("service_cert", "service_cert_hash", "service_priv_key")
    },
    "ntf_tokens": {
        ("ntf_host", "ntf_port"): (
            "device_token",
            "tkn_pub_key",
            "tkn_priv_key",
            "tkn_pub_dh_key",
            "tkn_priv_dh_key",
            "tkn_dh_secret",
            "tkn_action",
            "tkn_returned",
            "tkn_spent",
        )
    },
    "ntf_tokens_to_delete": {("tkn_id",): ("tkn_priv_key",)},
    "records": {("space", "key"): ("value",)},
    "awaited_messages": {("conn_id",): ("prev_hash",)},
    "events": {("name",): ("content",)},
}

BLINDED: dict[str, tuple[str, ...]] = {
    "conn_invitations": ("link_hash",),
    "encrypted_rcv_message_hashes": ("hash",),
    "processed_ratchet_key_hashes": ("hash",),
}

OLD_CLEAR: dict[str, tuple[str, ...]] = {
    "connections": ("last_rcv_msg_hash", "last_snd_msg_hash"),
    "rcv_queues": ("link_enc_fixed_data", "ntf_public_key"),
    "snd_queues": ("e2e_pub_key",),
    "ratchets": ("x3dh_pub_params",),
    "conn_confirmations": ("sender_key", "e2e_snd_pub_key", "smp_reply_queues"),
    "rcv_messages": ("internal_hash", "external_prev_snd_hash", "integrity"),
    "snd_messages": ("internal_hash", "previous_msg_hash"),
    "client_services": ("service_cert", "service_cert_hash"),
    "ntf_tokens": ("device_token", "tkn_pub_key", "tkn_pub_dh_key", "tkn_returned", "tkn_spent"),
}
"""Sealed columns that stores of the first format had in clear."""
