"""`blindpost ntf import` and `export`: between ntf-server's database and the store of a stopped router."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.moving.certificate import Moved
from blindpost.ntf.moving.exporting import Exporter
from blindpost.ntf.moving.importing import Importer
from blindpost.ntf.moving.old_database import old_database
from blindpost.ntf.process import open_store
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.tables import NtfStore
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import write_file


async def import_database(place: NtfPlace, dsn: str, schema: str, certificate: Path) -> Moved:
    """Import everything and write the certificate of what arrived; the store must be empty."""
    async with _opened(place) as store:
        if any(store.counts().values()):
            raise OperatorError(
                f"{place.file}, [store]: this store is not empty. Import into a new router; one whose "
                "import was stopped is set up again."
            )
        async with old_database(dsn, schema) as old:
            done = await Importer(old, store, int(time.time())).run()
    _certify(done, certificate)
    return done


async def export_database(place: NtfPlace, dsn: str, schema: str, certificate: Path) -> Moved:
    """Export everything and write the certificate of what left; ntf-server's tables must be empty."""
    async with _opened(place) as store, old_database(dsn, schema, writing=True) as old:
        done = await Exporter(store, old).run()
        _certify(done, certificate)
        if done.differing:
            raise OperatorError(
                f"what was written reads back different ({', '.join(done.differing)}): nothing of it was "
                f"kept. Both sides are in {certificate}; report it."
            )
    return done


@contextlib.asynccontextmanager
async def _opened(place: NtfPlace) -> AsyncIterator[NtfStore]:
    """The store of a stopped router."""
    with place.locked():
        store = await open_store(place)
        try:
            yield store
        except StoreFailedError as error:
            raise OperatorError(f"{place.file}, [store]: {error}.") from error
        finally:
            store.close()


def _certify(done: Moved, certificate: Path) -> None:
    told = {
        "made": int(time.time()),
        "source": done.source.values(),
        "result": done.result.values(),
        "left out": dict(done.left),
    }
    write_file(certificate, json.dumps(told, indent=1).encode() + b"\n")
