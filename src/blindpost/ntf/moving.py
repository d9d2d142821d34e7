"""`blindpost ntf import`: from the database of an ntf-server into the store of a new, stopped router."""

from __future__ import annotations

import json
import time
from pathlib import Path

from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.importing import Imported, import_rows, old_database
from blindpost.ntf.process import open_store
from blindpost.ntf.settings import NtfPlace
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import write_file


async def import_database(place: NtfPlace, dsn: str, schema: str, certificate: Path) -> Imported:
    """Import everything and write the certificate of what arrived; the store must be empty."""
    with place.locked():
        store = await open_store(place)
        try:
            if any(store.counts().values()):
                raise OperatorError(
                    f"{place.file}, [store]: this store is not empty. Import into a new router; one whose "
                    "import was stopped is set up again."
                )
            async with old_database(dsn, schema) as old:
                done = await import_rows(old, store, int(time.time()))
        except StoreFailedError as error:
            raise OperatorError(f"{place.file}, [store]: {error}.") from error
        finally:
            store.close()
    told = {
        "made": int(time.time()),
        "source": done.source.values(),
        "result": done.result.values(),
        "left out": dict(done.left),
    }
    write_file(certificate, json.dumps(told, indent=1).encode() + b"\n")
    return done
