-- An IoTDB that a receiver's files are LOADed into as well: what it was given, and how its database partitions stand.

CREATE TABLE iotdb_file (
    receiver TEXT NOT NULL,                -- the receiver whose catalog it is
    server TEXT NOT NULL,                  -- host:port of the IoTDB
    file_id BIGINT NOT NULL,               -- a source file of the catalog
    state TEXT NOT NULL,                   -- giving (outcome unknown until it is asked) | given | held (refused) | gone
    how TEXT NOT NULL,                     -- file (LOADed as it is) | points (those readers see) | found (it was there) | ''
    reason TEXT,                           -- held: why
    kind BIGINT NOT NULL DEFAULT 0,        -- held: exit code of that error
    at DOUBLE PRECISION NOT NULL,          -- when it came to this state
    PRIMARY KEY (receiver, server, file_id)
);

CREATE TABLE iotdb_partition (
    receiver TEXT NOT NULL,                -- the receiver whose catalog it is
    server TEXT NOT NULL,                  -- host:port of the IoTDB
    database_name TEXT NOT NULL,           -- the database
    partition BIGINT NOT NULL,             -- the catalog's time partition
    fence BIGINT NOT NULL,                 -- rises before anything is given to it
    counted BIGINT NOT NULL,               -- the fence at its last count: smaller where it is to be counted
    state TEXT NOT NULL,                   -- open (to be counted) | equal | differs
    reason TEXT,                           -- differs: what, NULL otherwise
    at DOUBLE PRECISION NOT NULL,          -- when it came to this state
    PRIMARY KEY (receiver, server, database_name, partition)
);
