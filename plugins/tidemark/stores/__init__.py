"""File stores: one protocol for a local disk and for a remote machine with python3, POSIX tools or SFTP alone.

Others call `open.open_store(address)`. It returns a `protocol.Store`. A remote one retries its calls. A far end is probed
once, and its best tier is used: `python3`, `posix`, `sftp`. The settings may force one.

    agent/      the code that may run in the far end's python3
    os_errors   translate an operating system's errors into Tidemark's
    ssh/        one SSH connection: dial, login, packets, pipes
    protocol    `Store`, its address (`StoreAddress`), its values `Entry`, `Listing`, `Range`, `Tier`; `read_stream`
    listing     a listing of up to a million files, packed in columns
    sftp/       the store behind an SFTP server alone
    local       the store on a disk of this machine; copies of files that other processes may still write to
    python/     the store whose far end has python3: the near end of the agent
    retrying    the one place where a failed call is repeated after seconds
    posix/      the store whose far end has a shell with POSIX tools
    open_sftp   log in, find out what the far end can run, make the best store for it
    open        open the store at an address

Every package above may import the modules of this folder. Its five folders are only for `transfer` and for opening a
store. Imports `settings.model`, `tsfiles` (names, sealed, resource), `native`, `untrusted_files`, `errors`. A store does
not know of transfers. No call follows a symlink. `StoreProperties` declares what a far end cannot do.
"""
