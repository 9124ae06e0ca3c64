"""A data node's folder and store, and a receiver's cluster opened for some work.

Enter by `cluster.open_cluster(app, receiver)`, and `folder.NodeFolder` for what lies at one node.

    formats         whose folder it is, and files kept there with their digest: `node.json` and others, as bytes
    schema_format   the schema of a database as bytes
    folder          the folder of a node: table, schema, snapshots, files; every call may be made again
    stores          where nodes are, and their stores, kept open
    cluster         the table in force and the nodes; what a change needs to begin

Imports `cluster.slots`, `app`, `formats.json_stream`, `ledger.cluster`, `ledger.receiver.schemas`, `settings`,
`stores`. Nothing of Tidemark runs at a node: who has work there opens its store. A node's address is what the
settings say, else what the ledger noted. Passwords stand in neither.
"""
