"""The store behind an SFTP server and nothing else: no shell, no tools, one pipelined session.

Enter by `store.SftpStore`; `stores.open` makes it where nothing better is there.

    protocol       SFTP version 3 over a pipe: many requests in flight, every status read, OpenSSH's extensions
    session        the same session with fewer copies, where the packet layer is ours
    read_stream    contents of many files as one stream
    write_stream   parts of many files written, made durable and closed in one stream of requests
    files          contents, links and renames by single calls; entries, trees and folders
    store          the `Store`

Imports `stores.ssh`, `stores.protocol` and `stores.os_errors`. Not guaranteed here: folders cannot be synced over
SFTP, so a name may be lost with power after a rename, and the source is kept until a later listing shows the file.
Digests are made of bytes that are read back over the line. Listings carry no inodes. Only `stores` and `transfer`
may import this folder.
"""
