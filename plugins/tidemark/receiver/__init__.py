"""Landing to readers: landings are loaded into the catalog, files are merged, readers see the newest points.

Doors: `load.load.load`, `merge.merge.merge`, `read.read`, `iotdb.load.load_iotdb`, `view.CatalogReader`.

    windows        which stretches of files are copied as they stand, which are decoded; pure
    proved_files   a file of the catalog is read only as what was loaded, by its digest
    kept_damage    kept files whose bytes rotted here: listed, given up
    load/          landings into the catalog: check, decide, place, record, answer, clean
    view           what readers see: files laid over each other, the newest point wins
    merge/         files that overlap become merged files
    read           what readers see, written to a Parquet or CSV file
    iotdb/         LOAD of the catalog into an IoTDB, counted there
    remote_tasks   a task on an executor that does not see the receiver's folder

A late file, whose times lie before those of files that came earlier, takes the same way. It is loaded and read at
its rank at once. In the same transaction merged files that overlap it and rank above it are withdrawn
(`ledger.receiver.merges.unmerge`); their sources are read again and the next merge makes them anew. A merged file
that stands alone is replaced whole (`load.removal`). An IoTDB is given it as points. A late landing waits for those
before it in its site's sequence; what comes behind it waits for it.

Imports `cluster`, `app`, `engines`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`. Only for a receiver whose
folder this process sees. Nothing of the sender is asked. Every door may be called again after a crash and goes on
from the ledger.
"""
