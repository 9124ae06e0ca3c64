"""The store whose far end has a shell with POSIX tools but no python3.

Others call `store.PosixStore`; `stores.open_sftp` makes it where `find`, `sha256sum`, `head`, `tail` and `rm` are found.

    shell         a shell with pipelined commands, and listings by its `find`
    read_stream   read many files as one stream: `tar` for bundles of small files, `dd`, `tail` and `head` for ranges
    store         the `Store`: tools for listings, digests and streams, SFTP for the rest

Imports `stores.sftp`, `stores.ssh`, `stores.python.bundle` and the modules of `stores`. Works with GNU's tools and
busybox's. Files that the tools cannot read are read over SFTP, which gives the reason. Writing uses SFTP. Folders are
made durable by `sync`; a `sync` that takes no names reports no errors. Only `stores` and `transfer` may import this folder.
"""
