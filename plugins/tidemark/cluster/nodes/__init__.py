"""A data node's folder and store, and a receiver's cluster opened for some work.

Enter by `cluster.open_cluster(app, receiver)`, and by `folder.NodeFolder` for the files of one node.

    formats         who owns a folder, and files kept there with their digest: `node.json`, table, schema
    folder          the folder of a node: table, schema, snapshots, files; every call may be repeated
    stores          the addresses of nodes, and their stores, kept open
    cluster         the table in force and the nodes; what a change needs to begin

Imports `cluster.slots`, `app`, `formats.json_stream`, `ledger.cluster`, `ledger.receiver.schemas`, `settings`, `stores`. No
Tidemark process runs at a node: callers open its store. A node's address comes from the settings, or else from the ledger.
Neither holds passwords.
"""
