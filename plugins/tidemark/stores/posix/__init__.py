"""The store whose far end has a shell with POSIX tools but no python3.

Others call `store.PosixStore`; `stores.open_sftp` makes it where `find`, `sha256sum`, `head`, `tail` and `rm` are found.

    shell   a shell that is kept for many commands, and listings by its `find`
    store   the `Store`: tools for listings, digests and removal, SFTP for contents and the rest

Imports `stores.sftp`, `stores.ssh`, `stores.python.bundle` and the modules of `stores`. Works with GNU's tools and
busybox's. Folders are made durable by `sync`; a `sync` that takes no names reports no errors. Only `stores` and `transfer`
may import this folder.
"""
