"""Where bytes live: one protocol over a disk, python3 by SSH, POSIX tools or SFTP alone.

Enter by `open.open_store(address)`. It gives a `protocol.Store`. A remote one has retries around its calls. A far
end is probed once, and the best tier that it has is taken: `python3`, `posix`, `sftp`. The settings may force one.

    agent/      everything that may run in the far end's python3
    os_errors   what an operating system says, as Tidemark's errors
    ssh/        one SSH connection: dial, login, packets, pipes
    protocol    `Store`, where it is (`StoreAddress`), its values `Entry`, `Listing`, `Range`, `Tier`; contents of many files
                as one stream
    listing     a listing of a million files, packed in columns
    sftp/       the store behind an SFTP server and nothing else
    local       the store on a disk of this machine; copies of files that somebody else may still write to
    python/     the store whose far end has python3: the near end of the agent
    retrying    the one place where a call is tried again in seconds
    posix/      the store whose far end has a shell with POSIX tools
    open_sftp   log in, find out what the far end can run, take the best store for it
    open        from an address to an open store

The modules of this folder are for every room above; the five folders are for `transfer` and for opening a store
alone. Imports `settings.model`, `tsfiles` (names, sealed, resource), `native`, `untrusted_files`, `errors`. A store does not
know of transfers. No call follows a symlink. Whatever a far end cannot do is declared in `StoreProperties`, never
guessed.
"""
