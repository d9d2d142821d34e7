"""Things that happen to a router's data behind its back; only while the service in question is away."""

from __future__ import annotations

from collections.abc import Iterable

from blindpost.engine.undo import Undo
from blindpost.router.changes import Needed, Wanted
from blindpost.router.model import ID_SIZE, ServiceRecord
from blindpost.router.tables import RouterStore
from blindpost.router.view import View
from tests.support.router.routers import RunningRouter


async def dissociate(running: RunningRouter, rcv_ids: Iterable[bytes]) -> None:
    """These queues belong to no service any more."""
    await _associate(running, rcv_ids, None)


async def associate(running: RunningRouter, rcv_ids: Iterable[bytes], service_id: bytes) -> None:
    """These queues belong to a service that never asked for it."""
    await _associate(running, rcv_ids, service_id)


async def _associate(running: RunningRouter, rcv_ids: Iterable[bytes], service_id: bytes | None) -> None:
    await associate_in(running.router.store, rcv_ids, service_id)


async def associate_in(store: RouterStore, rcv_ids: Iterable[bytes], service_id: bytes | None) -> None:
    """The same in a store that no router has open."""
    for rcv_id in rcv_ids:
        view = View(Undo())
        await store.load(Wanted(recipients={rcv_id}), view)
        record = view.records.get(rcv_id)
        assert record is not None
        services = {one for one in (record.service_id, service_id) if one is not None}
        await store.load(Wanted(services=services), view)
        await store.load_needed(Needed(ends={rcv_id}), view)
        view.put_queue(record._replace(service_id=service_id))
        await store.commit(view.changes)


async def is_service_known(running: RunningRouter, service_id: bytes) -> bool:
    view = View(Undo())
    await running.router.store.load(Wanted(services={service_id}), view)
    return view.services.get(service_id) is not None


async def rename_service(running: RunningRouter, service_id: bytes) -> bytes:
    """The certificate is of a new service, without queues, from now on; its id."""
    store, view = running.router.store, View(Undo())
    await store.load(Wanted(services={service_id}), view)
    old = view.services.get(service_id)
    assert old is not None
    new_id = bytes(reversed(service_id))
    assert len(new_id) == ID_SIZE
    view.put_service(ServiceRecord(new_id, old.role, old.fingerprint, old.chain, old.created_day))
    await store.commit(view.changes)
    return new_id
