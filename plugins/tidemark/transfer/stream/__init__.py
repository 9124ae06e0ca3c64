"""A transfer between a disk of this machine and a far end with python3: always more on its way than the line holds.

Enter by `ends.open_stream`, which makes a `pull.Pull` or a `push.Push`, and by `direct.Direct`. Each is one try for
`transfer.attempts.run_rounds`. One thread owns the plan and the connections, threads beside it read back and
publish.

    schedule         which bytes to ask next, of which connection; pure
    verify           parts are read back while they come, so that a digest is one of the file
    publish          whole files are made durable and named in batches
    connection       one connection of a pull: asks ranges, passes frames on
    push_connection  one connection of a push: reads, sends, passes answers on
    connections      how many connections, how much each is asked, which one is given up
    session          the loop that a pull and a push share
    pull             far end to this disk
    push             this disk to far end
    direct           one far end to another, by a key that is lent for that moment
    ends             which two ends can stream, and the pull or push of them

Imports `stores`, `stores.agent`, `stores.python`, `stores.ssh` and the modules of `transfer`. Only `transfer.engine`
and `transfer.route` import this folder. Not for ends of the tiers posix and sftp: those are `transfer.relay`'s.
"""
