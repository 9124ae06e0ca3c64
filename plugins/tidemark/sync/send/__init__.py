"""The bytes of a run into landings, and each landing made whole: transfer_files, finish, recover, cleanup.

Enter by `transfer_files.transfer_files`, `finish.finish`, `cleanup.recover` and `cleanup.cleanup`.

    batches         how files are cut: batches for the transfer engine, parts for readers; pure
    manifest        the manifest from the ledger's rows; pure
    receipts        what the receiver answered, read at the start of the next run
    finish          reserve a sequence number, publish the manifest, acknowledge; files in the landing counted again
    transfer_files  the bytes of the selected files, batch by batch
    cleanup         settle what a dead run left; remove the snapshot

Imports `sync.select` (snapshot, quarantine), `sync.session`, `transfer`, `formats`, `ledger`, `settings.window`,
`stores`, `tsfiles`. A file counts as sent when its TsFile, `.resource` and mods are durable at the receiver and
their digests agree. A landing is whole when `manifest.json` has its name. The snapshot goes only after every landing
of the run is recorded.
"""
