"""Stream files between a disk of this machine and a far end with python3: always more in flight than the line holds.

Enter by a `session.Session` with its direction, `pull.Pull` or `push.Push`, or by `direct.open_direct`, which makes one: one
round for `transfer.attempts.run_attempts`. A coordinating thread owns the plan and the connections; other
threads read back and publish.

    schedule     which bytes to ask next, of which connection; pure
    verify       read parts back while bytes come, so that a digest is one of the file on disk
    publish      make complete files durable and name them, in batches
    connection   one connection of a pull: requests ranges, passes frames on
    connections  how many connections, how much each is asked, which one is given up
    session      one round: its loop, its outcomes, its ending; what a direction is
    pull         far end to this disk
    push         this disk to far end, and its connections: read, send, pass answers on
    direct       one far end to another, with a login key that is lent for a moment

Imports `stores`, `stores.agent`, `stores.python`, `stores.ssh` and the modules of `transfer`. Only `transfer.engine`
imports this folder. Not for ends of the tiers posix and sftp: those are `transfer.relay`'s.
"""
