-- A receiver's data nodes: the partition table by epochs, what each node holds, what moves, operations by group.

CREATE TABLE cluster_table (
    receiver TEXT NOT NULL,                -- the receiver whose catalog the nodes hold
    epoch BIGINT NOT NULL,                 -- version of the table; the highest is the one in force
    paper TEXT NOT NULL,                   -- the table as `cluster.slots.table` writes it, base64
    sha256 TEXT NOT NULL,                  -- digest of the paper's bytes: a row that rots is noticed
    change_id TEXT NOT NULL,               -- the change that made it
    at DOUBLE PRECISION NOT NULL,          -- when it came into force
    PRIMARY KEY (receiver, epoch)
);

CREATE TABLE cluster_node (
    receiver TEXT NOT NULL,                -- the receiver
    node TEXT NOT NULL,                    -- name of the node
    identifier BIGINT NOT NULL,            -- its place on the ring
    store TEXT NOT NULL,                   -- file:///path or sftp://user@host:port/path, without a password
    host_key TEXT NOT NULL,                -- fingerprint of its server, '' for a folder of this machine
    key_file TEXT NOT NULL,                -- path of the private key, '' for none; never the key
    state TEXT NOT NULL,                   -- joining (until the table is swapped) | serving | leaving (readable) | left
    epoch BIGINT NOT NULL,                 -- newest table that lies in its folder for sure, 0 for none
    at DOUBLE PRECISION NOT NULL,          -- when it came to this state
    PRIMARY KEY (receiver, node)
);

CREATE TABLE cluster_change (
    change_id TEXT PRIMARY KEY,            -- a change of the nodes: one at a time
    receiver TEXT NOT NULL,                -- the receiver
    kind TEXT NOT NULL,                    -- init | add | remove | rebalance
    node TEXT NOT NULL,                    -- who joins or leaves, '' otherwise
    from_epoch BIGINT NOT NULL,            -- the epoch it was planned on: it is swapped only while that is in force
    state TEXT NOT NULL,                   -- planned | swapped (phase 1 in force) | migrating | done | rolled_back
    actor TEXT NOT NULL,                   -- who asked for it
    begun DOUBLE PRECISION NOT NULL,       -- when it was asked for
    ended DOUBLE PRECISION                 -- done or rolled back, NULL before
);

CREATE TABLE cluster_move (
    receiver TEXT NOT NULL,                -- the receiver
    epoch BIGINT NOT NULL,                 -- epoch of the table that moves it
    slot INTEGER NOT NULL,                 -- the slot
    old_group TEXT NOT NULL,               -- JSON list of the nodes that held it
    new_group TEXT NOT NULL,               -- JSON list of those that shall, header first
    state TEXT NOT NULL,                   -- moving | acknowledged (by all of the new group) | done (nothing is left behind)
    bytes_done BIGINT NOT NULL,            -- bytes that came to members of the new group for it
    at DOUBLE PRECISION NOT NULL,          -- when it came to this state
    PRIMARY KEY (receiver, epoch, slot)
);

CREATE TABLE cluster_acknowledgement (
    receiver TEXT NOT NULL,                -- the receiver
    epoch BIGINT NOT NULL,                 -- epoch of the move
    slot INTEGER NOT NULL,                 -- the slot
    node TEXT NOT NULL,                    -- the member of the new group that has all of it, proved
    at DOUBLE PRECISION NOT NULL,          -- when that was told first
    PRIMARY KEY (receiver, epoch, slot, node)
);

CREATE TABLE cluster_slot (
    receiver TEXT NOT NULL,                -- the receiver
    node TEXT NOT NULL,                    -- the node
    slot INTEGER NOT NULL,                 -- a slot that moves at this node; no row: null
    state TEXT NOT NULL,                   -- pulling | pulling_writable | sending | sent (cluster/slots/states.py)
    epoch BIGINT NOT NULL,                 -- epoch of the move
    PRIMARY KEY (receiver, node, slot)
);

CREATE TABLE node_copy (
    receiver TEXT NOT NULL,                -- the receiver
    node TEXT NOT NULL,                    -- the node that has it
    location TEXT NOT NULL,                -- a TsFile or mods of the catalog, relative to the receiver's root and to the node's
    slot INTEGER NOT NULL,                 -- slot of its database and first partition
    sha256 TEXT NOT NULL,                  -- digest proved when it came
    size BIGINT NOT NULL,                  -- its bytes
    state TEXT NOT NULL,                   -- held | going (to be removed; may be gone already)
    at DOUBLE PRECISION NOT NULL,          -- when it came to this state
    PRIMARY KEY (receiver, node, location)
);

CREATE TABLE group_operation (
    receiver TEXT NOT NULL,                -- the receiver
    header TEXT NOT NULL,                  -- header node of the group
    version BIGINT NOT NULL,               -- 1, 2, … without gaps in a group
    epoch BIGINT NOT NULL,                 -- table by which it was routed
    slot INTEGER NOT NULL,                 -- the slot it is of
    kind TEXT NOT NULL,                    -- put | remove | create_database | drop_database
    subject TEXT NOT NULL,                 -- a location, or a database
    sha256 TEXT NOT NULL,                  -- put: digest of the file; create_database: of its schema's paper; '' otherwise
    size BIGINT NOT NULL,                  -- put: its bytes, 0 otherwise
    state TEXT NOT NULL,                   -- proposed | committed (a quorum has it) | withdrawn (its epoch passed)
    at DOUBLE PRECISION NOT NULL,          -- when it came to this state
    PRIMARY KEY (receiver, header, version)
);

CREATE TABLE group_member (
    receiver TEXT NOT NULL,                -- the receiver
    header TEXT NOT NULL,                  -- header node of the group
    node TEXT NOT NULL,                    -- a member
    applied BIGINT NOT NULL,               -- every operation up to this version is applied there
    at DOUBLE PRECISION NOT NULL,          -- when it came that far
    PRIMARY KEY (receiver, header, node)
);

CREATE TABLE cache_use (
    receiver TEXT NOT NULL,                -- the receiver
    location TEXT NOT NULL,                -- a file of its catalog that its cache has, or had
    used DOUBLE PRECISION NOT NULL,        -- when a reader or a merge last asked for it, to the hour; no row: when it came
    PRIMARY KEY (receiver, location)
);

CREATE UNIQUE INDEX cluster_change_open ON cluster_change (receiver) WHERE state NOT IN ('done', 'rolled_back');
CREATE INDEX node_copy_location ON node_copy (receiver, location);
CREATE INDEX node_copy_slot ON node_copy (receiver, slot);
