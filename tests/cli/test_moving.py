"""Moving in through the real command: killed midway, then served under the old address."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from benchmarks.store_logs import Shape, write_files
from blindpost.cli.main import main
from blindpost.client.errors import RefusedError
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.router.bulk import BulkStore
from blindpost.router.moving.certificate import Certificate, certificate_of
from blindpost.router.moving.importing import Source
from blindpost.router.moving.progress import NAME
from blindpost.router.running import moves
from blindpost.router.tables import mark_key
from blindpost.serving.children import COMMAND
from blindpost.serving.failures import OperatorError
from blindpost.store.lmdb import META
from blindpost.wire.keys import Algorithm
from blindpost.wire.message_log import MessageLine, SavedMessage, SavedQuota, encode_message_line
from blindpost.wire.smp.commands import ACK, NEW, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.messages import Message, QuotaMarker
from blindpost.wire.smp.responses import OK, SOK
from blindpost.wire.smp.values import LinkData, NewLink, QueueMode, QueueRequest, SubMode
from blindpost.wire.store_log import CreateQueue, encode_store_line
from blindpost.wire.text import b64
from tests.support.router.routers import Queue, a_message, new_key, pushed
from tests.support.router.smp_server import smp_server_keys
from tests.support.serving.commands import ENVIRONMENT, started

Call = Callable[..., str]


def new_router(call: Call, folder: Path, *arguments: str) -> dict[str, Any]:
    at = ("--host", "localhost", "--port", "0", "--listen", "127.0.0.1", "--open", "--json")
    made: dict[str, Any] = json.loads(call("router", "init", folder, *at, *arguments))
    return made


def import_arguments(source: Source, to: Path) -> list[str]:
    arguments = ["router", "import", "--from-log", str(source.store_log), "--to", str(to)]
    if source.messages is not None:
        arguments += ["--messages", str(source.messages)]
    if source.notifications is not None:
        arguments += ["--ntfs", str(source.notifications)]
    return arguments


def certificate(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "import-certificate.json").read_text())
    return found


def test_an_import_killed_in_the_middle_is_repeated(tmp_path: Path, call: Call) -> None:
    source = write_files(tmp_path, Shape(7_000, messages_each=1), int(time.time()))
    with source.store_log.open("ab") as file:
        file.write(b"FOO\n")
    folder = tmp_path / "router"
    new_router(call, folder)
    command = [*COMMAND, *import_arguments(source, folder)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as importing:
        wait_for_mark(folder)
        importing.send_signal(signal.SIGKILL)
    assert not (folder / "import-certificate.json").exists()
    refused = call("router", "start", "-c", folder, code=1)
    assert "import" in refused
    assert "not complete" in refused
    done = call(*import_arguments(source, folder))
    assert "Everything arrived." in done
    found = certificate(folder)
    assert found["equal"] is True
    assert found["source"] == found["result"]
    assert (folder / "import-report.txt").read_text().count("\n") == 1
    again = json.loads(call(*import_arguments(source, folder), "--json"))
    assert again["done_before"] is True


def wait_for_mark(folder: Path) -> None:
    """Wait until the first chunk is committed."""
    with lmdb.open(str(folder / "store"), readonly=True, max_dbs=1) as store:
        meta = store.open_db(META.encode(), create=False)
        while True:
            with store.begin() as reading:
                if reading.get(mark_key(NAME), db=meta) is not None:
                    return
            time.sleep(0.002)


def a_queue(number: int) -> tuple[CreateQueue, Queue]:
    """A queue of another router, and the keys that its users have."""
    secret = PrivateKey.generate(Algorithm.X25519, system_entropy).agree(new_key(Algorithm.X25519).public)
    queue = Queue(bytes([number]) * 24, bytes([100 + number]) * 24, new_key(), BoxKey(secret))
    created = CreateQueue(
        queue.recipient_id,
        (queue.key.public,),
        secret,
        queue.sender_id,
        queue.sender_key.public,
        QueueMode.MESSAGING,
    )
    return created, queue


async def test_users_of_the_old_router_continue_at_the_same_address(tmp_path: Path, call: Call) -> None:
    now = int(time.time())
    old = tmp_path / "etc"
    fingerprint = smp_server_keys(old)
    (open_line, open_queue), (full_line, full_queue) = a_queue(1), a_queue(2)
    corr_id, linked_key = bytes(range(24)), new_key()
    sender_id = sender_id_of(corr_id)
    linked = CreateQueue(b"\4" * 24, (linked_key.public,), bytes(32), sender_id, mode=QueueMode.MESSAGING)
    log, messages = tmp_path / "smp-server-store.log", tmp_path / "smp-server-messages.log"
    log.write_bytes(b"".join(encode_store_line(line) + b"\n" for line in (open_line, full_line, linked)))
    waiting = [
        MessageLine(open_queue.recipient_id, SavedMessage(b"\1" * 24, now, False, b"before the move")),
        MessageLine(full_queue.recipient_id, SavedMessage(b"\2" * 24, now, True, b"the last one")),
        MessageLine(full_queue.recipient_id, SavedQuota(b"\3" * 24, now)),
    ]
    messages.write_bytes(b"".join(encode_message_line(line) + b"\n" for line in waiting))

    folder = tmp_path / "router"
    made = await asyncio.to_thread(new_router, call, folder, "--adopt", str(old))
    assert made["fingerprint"] == b64(fingerprint)
    await asyncio.to_thread(call, *import_arguments(Source(log, messages), folder))

    async with started(folder) as router:
        client, sender = await router.connect(), await router.connect()
        assert await client.send(SUB(), open_queue.recipient_id, open_queue.key) == SOK(None)
        push = await pushed(client)
        assert open_queue.opened(push.response) == Message(now, False, b"before the move")
        sent = await sender.send(a_message(b"after it"), open_queue.sender_id, open_queue.sender_key)
        assert sent == OK()
        following = await client.send(ACK(b"\1" * 24), open_queue.recipient_id, open_queue.key)
        opened = open_queue.opened(following)
        assert isinstance(opened, Message)
        assert opened.body == b"after it"

        with pytest.raises(RefusedError) as refused:
            await sender.send(a_message(), full_queue.sender_id, full_queue.sender_key)
        assert refused.value.error == Code.QUOTA
        assert await client.send(SUB(), full_queue.recipient_id, full_queue.key) == SOK(None)
        assert full_queue.opened((await pushed(client)).response) == Message(now, True, b"the last one")
        marker = await client.send(ACK(b"\2" * 24), full_queue.recipient_id, full_queue.key)
        assert full_queue.opened(marker) == QuotaMarker(now)
        assert await client.send(ACK(b"\3" * 24), full_queue.recipient_id, full_queue.key) == OK()
        assert await sender.send(a_message(), full_queue.sender_id, full_queue.sender_key) == OK()

        again = NEW(
            linked_key.public,
            new_key(Algorithm.X25519).public,
            None,
            SubMode.SUBSCRIBE,
            QueueRequest(QueueMode.MESSAGING, NewLink(sender_id, LinkData(b"f", b"u"))),
        )
        with pytest.raises(RefusedError) as refused:
            await client.send(again, key=linked_key, corr_id=corr_id)
        assert refused.value.error == Code.AUTH
        await client.close()
        await sender.close()


def test_a_rehearsal_changes_nothing(tmp_path: Path, call: Call) -> None:
    source = write_files(tmp_path, Shape(200), int(time.time()))
    folder = tmp_path / "router"
    new_router(call, folder)
    before = (folder / "store" / "data.mdb").read_bytes()
    told = json.loads(call(*import_arguments(source, folder), "--dry-run", "--json"))
    assert told["certificate"]["equal"] is True
    assert told["certificate"]["source"]["queues"] > 100
    assert (folder / "store" / "data.mdb").read_bytes() == before
    assert not (folder / "import-certificate.json").exists()
    assert {path.name for path in folder.iterdir()} == {"keys", "store", "router.toml"}
    call(*import_arguments(source, folder))
    assert certificate(folder)["result"] == told["certificate"]["result"]


def test_export_and_import_into_another_router(tmp_path: Path, call: Call) -> None:
    source = write_files(tmp_path, Shape(200), int(time.time()))
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    new_router(call, first)
    new_router(call, second)
    out.mkdir()
    call(*import_arguments(source, first))
    done = call("router", "export", "--from", first, "--to-log", out / "smp-server-store.log")
    assert "Everything arrived." in done
    written: dict[str, Any] = json.loads((out / "export-certificate.json").read_text())
    assert written["result"] == certificate(first)["result"]
    refused = call("router", "export", "--from", first, "--to-log", out / "smp-server-store.log", code=1)
    assert "this exists already" in refused
    call("router", "import", "--from", first, "--to", second)
    assert certificate(second)["result"] == certificate(first)["result"]
    assert "into itself" in call("router", "import", "--from", first, "--to", first, code=1)


def test_no_file_is_named_for_two_things(tmp_path: Path, call: Call) -> None:
    source = write_files(tmp_path, Shape(20), int(time.time()))
    folder, out = tmp_path / "router", tmp_path / "out"
    new_router(call, folder)
    out.mkdir()
    before = source.store_log.read_bytes()
    for option in ("--report", "--certificate"):
        refused = call(*import_arguments(source, folder), option, out / ".." / source.store_log.name, code=1)
        assert "this is named for two things" in refused
    assert source.store_log.read_bytes() == before
    log = ("router", "export", "--from", folder, "--to-log", out / "log")
    for option in ("--messages", "--ntfs", "--certificate"):
        assert "this is named for two things" in call(*log, option, out / "log", code=1)
    assert not list(out.iterdir())


def test_a_failed_import_is_explained_in_one_line(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "router"
    new_router(call, folder)
    log = tmp_path / "smp-server-store.log"
    missing = call("router", "import", "--from-log", log, "--to", folder, code=1)
    assert missing == f"blindpost: {log}: there is no such file or folder.\n"
    log.write_bytes(b"")
    call("router", "import", "--to", folder, code=2)
    call(
        "router",
        "import",
        "--from-log",
        log,
        "--messages",
        log,
        "--journal",
        tmp_path,
        "--to",
        folder,
        code=2,
    )
    call("router", "import", "--from", folder, "--ntfs", log, "--to", folder, code=2)
    (tmp_path / "smp-server-store.log.start").write_bytes(b"")
    torn = call("router", "import", "--from-log", log, "--to", folder, code=1)
    assert "smp-server-store.log.start" in torn


def test_an_identity_is_taken_over_whole_or_not_at_all(tmp_path: Path, call: Call) -> None:
    old, other = tmp_path / "etc", tmp_path / "other"
    smp_server_keys(old)
    smp_server_keys(other)
    at = ("--host", "localhost", "--open", "--adopt", old)
    for name in ("server.key", "server.crt", "ca.crt", "ca.key"):
        right = (old / name).read_bytes()
        (old / name).write_bytes((other / name).read_bytes())
        call("router", "init", tmp_path / "refused", *at, code=1)
        assert not (tmp_path / "refused").exists()
        (old / name).write_bytes(right)
    (old / "ca.key").unlink()
    folder = tmp_path / "router"
    call("router", "init", folder, *at)
    assert not (folder / "keys" / "ca.key").exists()
    assert (folder / "keys" / "ca.crt").read_bytes() == (old / "ca.crt").read_bytes()


def test_a_difference_is_shown_and_the_router_does_not_start(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_files(tmp_path, Shape(50), int(time.time()))
    folder = tmp_path / "router"
    new_router(call, folder)

    async def short_by_one(bulk: BulkStore) -> Certificate:
        found = await certificate_of(bulk)
        return {**found, "queues": int(found["queues"]) - 1}

    with monkeypatch.context() as patched:
        patched.setattr(moves, "certificate_of", short_by_one)
        monkeypatch.setattr(sys, "argv", ["blindpost", *import_arguments(source, folder)])
        with pytest.raises(SystemExit) as caught:
            main()
    assert caught.value.code == 1
    said = capsys.readouterr().out
    assert "DIFFERENT: queues\n" in said
    assert certificate(folder)["differing"] == ["queues"]
    assert "not complete" in call("router", "start", "-c", folder, code=1)
    assert "Everything arrived." in call(*import_arguments(source, folder))
    assert certificate(folder)["equal"] is True


@pytest.mark.parametrize("way", ["files", "router"])
def test_an_import_is_final_only_when_its_certificate_is_written(
    way: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = write_files(tmp_path, Shape(20, messages_each=1), int(time.time())), tmp_path / "router"
    new_router(call, folder)
    words = import_arguments(source, folder)
    if way == "router":
        call(*words)
        folder = tmp_path / "copy"
        new_router(call, folder)
        words = ["router", "import", "--from", str(tmp_path / "router"), "--to", str(folder)]
    for nowhere in (tmp_path / "no" / "folder" / "certificate.json", tmp_path):
        refused = call(*words, "--certificate", nowhere, code=1)
        assert "nothing can be written there" in refused
    kept = tmp_path / "certificate.json"

    def full(path: Path, content: bytes) -> None:
        raise OperatorError(f"{path}: the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(moves, "write_file", full)
        assert "the disk is full" in call(*words, "--certificate", kept, code=1)
    assert "Everything arrived." in call(*words, "--certificate", kept)
    assert json.loads(kept.read_text())["equal"] is True


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from-log", "x", "--dry-run", "--certificate", "c"), "--dry-run writes no certificate"),
        (("--from", "x", "--report", "r"), "--report belongs to --from-log"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: tuple[str, ...], told: str, call: Call) -> None:
    assert told in call("router", "import", "--to", "nowhere", *words, code=2)


def test_an_export_is_not_begun_if_its_certificate_cannot_be_written(tmp_path: Path, call: Call) -> None:
    new_router(call, tmp_path / "router")
    log = tmp_path / "out.log"
    words = ("router", "export", "--from", tmp_path / "router", "--to-log", log, "--certificate")
    assert "nothing can be written there" in call(*words, tmp_path / "no" / "c.json", code=1)
    assert not log.exists()
    call(*words, tmp_path / "c.json")
    assert (tmp_path / "c.json").exists()
