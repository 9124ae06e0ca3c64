"""Load landings into the catalog, merge overlapping files, and show readers the newest points.

Enter by `load.load.load`, `merge.merge.merge`, `read.read`, `iotdb.load.load_iotdb`, `view.CatalogReader`.

    session        a receiver that is open, with its store, its nodes and its lease
    windows        which stretches of files are copied unchanged, which are decoded; pure
    proved_files   check by digest that a catalog file is what was loaded, before it is read
    faults         whose fault a failure is: a landing's or this machine's
    load/          landings into the catalog: check, decide, place, record, answer, clean
    kept_damage    kept files whose bytes rotted here: list them, give them up
    view           what readers see: files laid over each other, the newest point wins
    merge/         overlapping files become merged files
    point_file     rows into a Parquet, CSV or JSON lines file, or a stream
    read           what readers see, as rows of such a file
    iotdb/         LOAD the catalog into an IoTDB and count its points there
    remote_tasks   run a task on an executor that does not see the receiver's folder

A late file has times before those of files that arrived earlier. It takes the same path: it is loaded and read at its rank
at once. The same transaction withdraws merged files that overlap it and rank above it
(`ledger.receiver.merges.unmerge_files`). Readers read their sources again, and the next merge makes them anew. A settled
merged file is replaced whole (`load.removal`). An IoTDB receives the late file as points. A late landing waits for earlier
ones in its site's sequence; later ones wait for it.

Imports `cluster`, `app`, `engines`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`. Only for a receiver whose folder
this process sees. Nothing is asked of the sender. Every entry may be called again after a crash and continues from the
ledger.
"""
