"""A router's life through the real command: set up, run, drain, back up, restore, renew."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import stat
from pathlib import Path

import pytest

from blindpost.client.errors import ClientError
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.commands import ACK, KEY, PING, SEND, SUB
from blindpost.wire.smp.messages import Message
from blindpost.wire.smp.responses import MSG, OK, PONG
from blindpost.wire.text import b64, unb64
from tests.support.router.links import a_contact_link
from tests.support.router.routers import Queue, a_message, new_queue, pushed
from tests.support.serving.commands import edit, init, run, started

BODIES = 40


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_keeps_secrets_to_their_owner_and_prints_the_address(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    printed = run(
        *("router", "init", folder, "--host", "smp.example.org", "--host", "abcdef.onion"),
        *("--password", "secret", "--key-algorithm", "ed448", "--port", "5230"),
    ).stdout
    address = json.loads(run("router", "address", "-c", folder, "--json").stdout)
    assert printed.splitlines()[0] == address["address"]
    assert address["address"] == f"smp://{address['fingerprint']}:secret@smp.example.org,abcdef.onion:5230"
    assert "█" in printed
    assert "ca.key" in printed
    assert [mode(folder / name) for name in ("keys/ca.key", "keys/router.pem", "router.toml")] == [0o600] * 3
    assert [mode(path) for path in (folder, folder / "keys", folder / "store")] == [0o700] * 3
    text = run("router", "address", "-c", folder / "router.toml", "--qr").stdout
    assert text.splitlines()[0] == address["address"]
    assert "█" in text


async def drained(router_folder: Path) -> tuple[Queue, list[bytes], int]:
    """Send as fast as the router accepts and stop it midway: what was answered OK, the exit code."""
    async with started(router_folder) as router:
        recipient, sender = await router.connect(), await router.connect()
        queue = await new_queue(recipient, secured=True)
        confirmed: list[bytes] = []
        many = asyncio.Event()

        async def send(number: int) -> None:
            body = b"%d" % number + bytes(15_000)
            try:
                await sender.send(SEND(False, body), queue.sender_id, queue.sender_key)
            except (TransportError, ClientError):
                return
            confirmed.append(body)
            if len(confirmed) == BODIES:
                many.set()

        sending = [asyncio.create_task(send(number)) for number in range(110)]
        await many.wait()
        code = await router.end(signal.SIGTERM)
        await asyncio.gather(*sending)
        await recipient.wait_closed()
        await sender.wait_closed()
        assert b"SIGTERM" in router.log
        assert not (router_folder / "control.sock").exists()
    return queue, confirmed, code


async def received_all(router_folder: Path, queue: Queue) -> list[bytes]:
    """Every message that a restarted router delivers."""
    bodies: list[bytes] = []
    async with started(router_folder) as router, await router.connect() as client:
        await client.send(SUB(), queue.recipient_id, queue.key)
        response = (await pushed(client)).response
        while isinstance(response, MSG):
            message = queue.opened(response)
            assert isinstance(message, Message)
            bodies.append(bytes(message.body))
            response = await client.send(ACK(response.msg_id), queue.recipient_id, queue.key)
        assert response == OK()
        assert await router.end(signal.SIGINT) == 0
    return bodies


async def test_after_sigterm_accepted_commands_are_answered_and_stored(tmp_path: Path) -> None:
    init(tmp_path / "router")
    queue, confirmed, code = await drained(tmp_path / "router")
    assert code == 0
    assert len(confirmed) >= BODIES
    bodies = await received_all(tmp_path / "router", queue)
    assert bodies == confirmed


async def test_operator_commands_reach_the_running_router(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    fingerprint = unb64(str(init(folder)["fingerprint"]))
    edit(folder, 'log = ""', 'log = "done.log"')
    async with started(folder) as router, await router.connect() as client:
        queue = await new_queue(client, secured=True)
        sender_id = b64(queue.sender_id)
        link = a_contact_link(fingerprint, queue.sender_id)

        async def command(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(run, "router", *arguments, "-c", folder, code=code)
            return done.stdout + done.stderr

        status = json.loads(await command("status", "--json"))
        assert (status["state"], status["connections"], status["queues"]) == ("running", 1, 1)
        assert "queues" in await command("status")
        assert json.loads(await command("connections", "--json"))["by_version"] == {"20": 1}
        assert json.loads(await command("stats", "--json"))["counts"]["qCreated"] == 1
        blocked = json.loads(
            await command(
                *("queues", "block", link, "--reason", "spam", "--notice-ttl", "60"),
                *("--note", "report\u2028 7", "--json"),
            )
        )
        assert blocked == {"outcome": "blocked"}
        event = await pushed(client)
        assert event.entity_id == queue.recipient_id
        assert "blocked, reason spam" in await command("queues", "show", sender_id)
        listed = json.loads(await command("queues", "blocked", "--json"))["blocked"]
        assert [(one["sender_id"], one["reason"], one["note"]) for one in listed] == [
            (sender_id, "spam", "report\u2028 7")
        ]
        assert "report" in await command("queues", "blocked")
        with pytest.raises(ClientError, match=r'BLOCKED reason=spam,notice={"ttl":60}'):
            await client.send(a_message(), queue.sender_id, queue.sender_key)
        assert "unblocked" in await command("queues", "unblock", sender_id)
        assert "No queue is blocked" in await command("queues", "blocked")
        assert "not blocked" in await command("queues", "unblock", sender_id, code=1)
        assert await client.send(a_message(), queue.sender_id, queue.sender_key) == OK()
        assert "deleted, with 1 messages" in await command("queues", "delete", sender_id)
        assert "no queue" in await command("queues", "delete", sender_id, code=1)
        assert "base64url" in await command("queues", "delete", "!", code=1)
        noted = [json.loads(line) for line in (folder / "done.log").read_text().split("\n")[:-1]]
        assert [(one["action"], one["id"]) for one in noted] == [
            (action, sender_id) for action in ("block", "unblock", "delete")
        ]
        assert (folder / "done.log").stat().st_mode & 0o777 == 0o600
        assert sender_id.encode() not in router.log
        with pytest.raises(ClientError, match="AUTH"):
            await client.send(KEY(queue.key.public), queue.recipient_id, queue.key)


def leaf_of(port: int) -> bytes:
    """The certificate that a router presents."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["smp/1"])
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True) or b""


@pytest.mark.parametrize("by", ["command", "SIGHUP"])
async def test_a_new_certificate_is_used_while_a_session_stays(tmp_path: Path, by: str) -> None:
    folder = tmp_path / "router"
    address = init(folder)
    key = (folder / "keys" / "ca.key").read_bytes()
    offline = tmp_path / "usb" / "ca.key"
    offline.parent.mkdir()
    inside = run("router", "move-ca-key", folder / "keys" / "other.key", "-c", folder, code=1)
    assert "Name a place outside" in inside.stderr
    told = run("router", "move-ca-key", offline, "-c", folder).stdout
    assert f"rotate-cert --ca-key {offline}" in told
    assert (offline.read_bytes(), (folder / "keys" / "ca.key").exists()) == (key, False)
    assert offline.stat().st_mode & 0o777 == 0o600
    async with started(folder) as router, await router.connect() as client:
        port = int(router.status["ports"][0])
        before = await asyncio.to_thread(leaf_of, port)
        refused = await asyncio.to_thread(run, "router", "rotate-cert", "-c", folder, code=1)
        assert "the CA key is not here" in refused.stderr
        assert await asyncio.to_thread(leaf_of, port) == before
        if by == "SIGHUP":
            (folder / "a file").touch()
            (folder / "a file").replace(folder / "control.sock")  # in one step: a lost socket is opened again
        done = await asyncio.to_thread(run, "router", "rotate-cert", "-c", folder, "--ca-key", offline)
        if by == "SIGHUP":
            assert "at the next start" in done.stdout
            assert await asyncio.to_thread(leaf_of, port) == before
            router.child.send(signal.SIGHUP)
            await router.told(b"reloaded certificates and settings")
        else:
            assert "running router uses the new certificate" in done.stdout
        assert await asyncio.to_thread(leaf_of, port) != before
        assert await client.send(PING()) == PONG()
        async with await router.connect() as second:
            assert await second.send(PING()) == PONG()
    assert json.loads(run("router", "address", "-c", folder, "--json").stdout) == address


async def test_a_backup_of_a_running_router_is_restored(tmp_path: Path) -> None:
    folder, backup = tmp_path / "router", tmp_path / "backup"
    init(folder)
    async with started(folder) as router, await router.connect() as client:
        queue = await new_queue(client, secured=True)
        await client.send(a_message(b"kept"), queue.sender_id, queue.sender_key)
        made = json.loads(
            (await asyncio.to_thread(run, "router", "backup", backup, "-c", folder, "--json")).stdout
        )
        assert made["bytes"] > 0
        await client.send(a_message(b"after the backup"), queue.sender_id, queue.sender_key)
        running = await asyncio.to_thread(run, "router", "restore", backup, "--to", folder, "--force", code=1)
        assert "a router is running" in running.stderr
        assert await router.end() == 0
    assert not (backup / "keys" / "ca.key").exists()
    assert "this exists already" in run("router", "backup", backup, "-c", folder, code=1).stderr
    assert "--force" in run("router", "restore", backup, "--to", folder, code=1).stderr
    done = json.loads(run("router", "restore", backup, "--to", folder, "--force", "--json").stdout)
    assert (Path(done["moved_aside"]) / "store" / "data.mdb").exists()
    assert (folder / "keys" / "ca.key").exists()
    assert mode(folder / "keys" / "router.pem") == 0o600
    assert await received_all(folder, queue) == [b"kept"]
    run("router", "restore", backup, "--to", tmp_path / "elsewhere")
    assert await received_all(tmp_path / "elsewhere", queue) == [b"kept"]


async def test_counters_continue_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    for runs in (1, 2):
        async with started(folder) as router, await router.connect() as client:
            await new_queue(client)
            stats = await router.ask("stats")
            assert stats["counts"]["qCreated"] == runs
            assert await router.end() == 0
    (folder / "counters.json").write_text("{")
    async with started(folder) as router:
        assert (await router.ask("stats"))["counts"]["qCreated"] == 0
        assert b"cannot be read" in router.log
    assert (folder / "counters.unreadable").exists()


async def test_active_queues_continue_after_a_restart_and_are_in_no_backup(tmp_path: Path) -> None:
    """Their salt does not leave the router's folder."""
    folder, backup = tmp_path / "router", tmp_path / "backup"
    init(folder)
    queues: list[Queue] = []
    for active in (1, 2):
        async with started(folder) as router, await router.connect() as client:
            queues.insert(0, await new_queue(client, secured=True))
            for queue in queues:  # the new one first; the other does not count again
                await client.send(a_message(notify=True), queue.sender_id, queue.sender_key)
                found = (await router.ask("stats"))["active"]
                assert (found["queues_weekly"], found["queues_notify_monthly"]) == (active, active)
            assert await router.end() == 0
    assert mode(folder / "activity.json") == 0o600
    run("router", "backup", backup, "-c", folder)
    assert (backup / "counters.json").exists()
    assert not (backup / "activity.json").exists()
