"""The transfer engine: copy files from one store to another, verified, once, resumable.

Enter by `engine.send_files(source, target, items, options)`. It yields one `Sent` or `Failed` for each item, in any order.
`engine` chooses the path by the pair of stores:

    python3 to a local disk, or back        `stream.pull`, `stream.push`
    python3 to python3, `options.direct`    `stream.direct`, or `relay` where one does not reach the other
    any other pair                          `relay`

    limits     caps on bytes a second, the time a file may take, the edge of a link's window
    items      input (`SendItem`, `SendOptions`) and results (`Sent`, `Failed`) of a transfer
    attempts   retry rounds until every file has its outcome
    existing   what exists already: identity, digests at both ends
    stream/    between a disk of this machine and a far end with python3, or two far ends, over many connections
    relay/     between any two stores, through this machine
    engine     the entry point; the path between two stores

Guaranteed: a file is `Sent` only when its bytes are durable at the target under their final name and their digest
there equals the one made at the source. A lost connection costs the blocks that were not journaled. Not guaranteed:
a digest made at a source of the tier sftp; its files are `verified` at the "target" alone. The engine records
nothing in the ledger: its caller does.

Imports `stores`, and `settings` for the type of what becomes options; nothing above. Others import `engine`, `items` and
`limits` only.
"""
