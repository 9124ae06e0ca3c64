"""Copy files between any two stores through this machine: one read stream, pipelined writes, digests, names.

Enter by `relay.Relay`, which `transfer.engine` makes; it is one round for `transfer.attempts.run_attempts`. One thread.

    job            one file: its progress, the digests of its bytes, checks of its source
    disk_target    write to a disk of this machine
    sftp_target    write over an SFTP session with many requests in flight
    target         write to any store; `target_of` chooses by the store's type
    relay          the loop, and the check of the target's free space

Imports `stores`, `stores.agent`, `stores.sftp` and the modules of `transfer`. Only `transfer.engine`
imports this folder. Slower than `transfer.stream`; the outcomes mean the same.
"""
