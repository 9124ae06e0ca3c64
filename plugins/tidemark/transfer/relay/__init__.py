"""A transfer between any two stores through this machine: one reading stream, writes on their way, digests, names.

Enter by `relay.Relay`, which `transfer.engine` makes; it is one try for `transfer.attempts.run_rounds`. One thread.

    job            one file: how far it has come, what is known of its bytes, what its source says of it
    disk_target    where a relay writes on a disk of this machine
    sftp_target    where a relay writes at the far end of an SFTP session, many requests on their way
    target         where it writes in general, and `target_of`, which chooses by the store's type
    relay          the loop, and whether the target has room

Imports `stores`, `stores.agent`, `stores.sftp` and the modules of `transfer`. Only `transfer.engine` and
`transfer.route` import this folder. Slower than `transfer.stream`; the outcomes mean the same.
"""
