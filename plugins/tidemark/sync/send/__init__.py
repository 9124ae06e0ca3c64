"""Send a run's files into landings, and complete each landing: the steps transfer_files, finish, recover, cleanup.

Enter by `transfer_files.transfer_files`, `finish.finish`, `cleanup.recover` and `cleanup.cleanup`.

    batches         divide files into batches for the transfer engine and parts for readers; pure
    manifest        make the manifest from the ledger's rows; equal rows give equal bytes
    receipts        read the receiver's answers at the start of the next run
    finish          reserve a sequence number, check the landing's files, publish the manifest, acknowledge
    transfer_files  send the selected files, batch by batch
    cleanup         settle what a dead run left; remove the snapshot

Imports `sync.select` (snapshot, quarantine), `sync.session`, `transfer`, `formats`, `ledger`, `settings.window`,
`stores`, `tsfiles`. A file counts as sent when its TsFile, `.resource` and mods are durable at the receiver and
their digests agree. A landing is complete when `manifest.json` has its name. The snapshot is removed only after every
landing of the run is recorded.
"""
