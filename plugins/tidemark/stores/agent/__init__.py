"""The agent: everything that may run in the far end's python3, and the same lines on a disk of this machine.

Nothing is installed and nothing stays. `stores.python.bundle` sends the text of these modules over the SSH channel,
and `server.serve` runs there as long as the connection lives. `stores.local` calls `disk` and `durable` in this
process.

    frames         the protocol: structs, kinds and flags of all frames, on one page
    durable        the only module that gives files their final names: write, fsync, rename, fsync the folder
    block_journal  `<target>.part.blocks`: which blocks of a large file have arrived
    limits         the agent neither outlives its connection nor outgrows its memory
    disk           list, read, digest, link and remove below one root; packed listings
    reader         far end of a pull: ranges of many files as frames
    part_file      parts while they come: written, read back, journaled; what an earlier try left; room on the disk
    forward        a node that sends to another node by its own ssh client
    publisher      far end of a push, behind the writer: pieces read back, files made durable and named
    writer         far end of a push: frames into parts
    server         operations asked and answered in frames

Imports the standard library alone and nothing of ours from outside this folder. Python 3.6, plain OSError, paths as
bytes. Only `stores` and `transfer` may import it.
"""
