"""The store whose far end has a shell with POSIX tools but no python3.

Enter by `store.PosixStore`; `stores.open` makes it where `find`, `sha256sum`, `head`, `tail` and `rm` are found.

    shell         a shell that is fed commands ahead, and listings by its `find`
    read_stream   file contents as one stream: `tar` for bundles of small files, `dd`, `tail` and `head` for ranges
    store         the `Store`: tools for listings, digests and streams, SFTP for the rest

Imports `stores.sftp`, `stores.ssh`, `stores.python.bundle` and the modules of `stores`. Both GNU's tools and
busybox's are understood. What the tools do not bring is asked over SFTP, which says what is wrong with it. Writing
goes by SFTP; folders are made durable by `sync`, which tells of no trouble where it takes no names. Only `stores`
and `transfer` may import this folder.
"""
