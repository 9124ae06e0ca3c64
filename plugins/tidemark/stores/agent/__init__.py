"""The agent: the code that may run in the far end's python3. `stores.local` runs the same code on a disk of this machine.

Nothing is installed and no file stays. `stores.python.bundle` sends the text of these modules over the SSH channel.
`server.serve` runs there as long as the connection lives. `stores.local` calls `disk` and `durable` in this process.

    frames         the protocol: structs, kinds and flags of all frames, on one page
    durable        the only Python module that gives files on a disk their names: write, fsync, rename, fsync the folder
    block_journal  `<target>.part.blocks`: which blocks of a large file have arrived
    limits         end the agent with its connection; limit its memory
    disk           list, read, digest, link and remove below one root; packed listings
    reader         far end of a pull: send ranges of many files as frames
    part_file      write, read back and journal parts; check what an earlier try left; watch the free space
    forward        a node that sends to another node by its own ssh client
    publisher      far end of a push, second stage: read pieces back, make files durable, rename them
    writer         far end of a push, first stage: write the frames' bytes into parts
    appender       compare a file's end and append, in one act
    server         receive operations and answer them in frames

Imports only the standard library and modules of this folder. Python 3.6 or newer, plain OSError, paths as bytes.
Only `stores` and `transfer` may import it.
"""
