"""The store behind an SFTP server alone: no shell, no tools, one pipelined session.

Others call `store.SftpStore`; `stores.open_sftp` makes it where nothing better is available.

    protocol       SFTP version 3 over a pipe: many requests in flight, every status read, OpenSSH's extensions
    session        the same session with fewer copies, where our packet layer is used
    read_stream    read many files as one stream
    write_stream   write the parts of many files, make them durable and close them in one stream of requests
    files          contents, links and renames by single calls; entries, trees and folders
    store          the `Store`

Imports `stores.ssh`, `stores.agent.disk`, `stores.protocol` and `stores.os_errors`. Not guaranteed: folders cannot be
synced over SFTP, so a power loss may undo a rename, and the source is kept until a later listing shows the file. Digests
are made from bytes read back over the connection. Listings have no inodes. Only `stores` and `transfer` may import this
folder.
"""
