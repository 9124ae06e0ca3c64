-- Tasks that read the changes of a source in shards, and how far each shard of a task is.

CREATE TABLE change_task (
    name TEXT NOT NULL PRIMARY KEY,        -- the task
    source TEXT NOT NULL,                  -- the source whose changes it reads
    shards BIGINT NOT NULL,                -- into how many shards its rows are divided
    hash TEXT NOT NULL,                    -- by which hash: mixed, ptubes
    key_change TEXT NOT NULL,              -- a row whose key changes: split, after, refuse
    columns TEXT NOT NULL,                 -- JSON: "database.table" to a list of its shard columns
    tables TEXT NOT NULL,                  -- JSON list of patterns of the tables that it reads
    generation BIGINT NOT NULL,            -- rises with each other number of shards
    version_ts BIGINT NOT NULL,            -- versionTs: when it was last rewound or divided anew, milliseconds since 1970; it rises
    created DOUBLE PRECISION NOT NULL      -- when its first member began
);

CREATE TABLE change_point (
    task TEXT NOT NULL,                    -- the task
    shard BIGINT NOT NULL,                 -- the shard
    seq BIGINT NOT NULL,                   -- the store's transaction that comes next
    event_index BIGINT NOT NULL,           -- eventIndex: rows of it that are done already, those of all shards counted
    change_id BIGINT NOT NULL,             -- change id of the last transaction of which something is done, 0: none is
    gtids TEXT NOT NULL,                   -- GTID set of the source before the transaction that comes next
    uuid TEXT NOT NULL,                    -- uuid of the GTID of that last transaction
    transaction_id BIGINT NOT NULL,        -- transactionId of it
    server_id BIGINT NOT NULL,             -- serverId: the server that committed it
    binlog_file BIGINT NOT NULL,           -- binlogFile: number of the log that it is in
    binlog_offset BIGINT NOT NULL,         -- binlogOffset: where it begins there
    timestamp BIGINT NOT NULL,             -- when it was committed, microseconds since 1970
    version_ts BIGINT NOT NULL,            -- versionTs of this point: an older one never replaces it
    mode TEXT NOT NULL,                    -- checkpointMode: EARLIEST, LATEST, NORMAL
    fence BIGINT NOT NULL,                 -- fence of the member that moved it, 0: no member
    at DOUBLE PRECISION NOT NULL,          -- when it was moved
    PRIMARY KEY (task, shard)
);
