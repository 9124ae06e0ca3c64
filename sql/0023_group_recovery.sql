-- How far the recovery of a member of a data group is. Its row goes when the member is in step.

CREATE TABLE group_recovery (
    receiver TEXT NOT NULL,                -- the receiver
    header TEXT NOT NULL,                  -- the header node of the group
    node TEXT NOT NULL,                    -- the member that recovers
    epoch BIGINT NOT NULL,                 -- epoch of the master that it recovers from
    phase TEXT NOT NULL,                   -- init, start, file, wal, cache
    source_index TEXT NOT NULL,            -- what decides which files the group has: the partition table when copying began; empty before
    target_epoch BIGINT NOT NULL,          -- epoch of the position that it must reach
    target_version BIGINT NOT NULL,        -- version of that position; -1: no look has read it yet
    restarts BIGINT NOT NULL,              -- how often its source changed meanwhile, and it began anew
    files BIGINT NOT NULL,                 -- files that it lacked when copying began
    again DOUBLE PRECISION NOT NULL,       -- when the watch and the DAG may begin it anew; 0: at once
    fence BIGINT NOT NULL,                 -- fence of the lease under which it was written: is that one held, it is at work
    begun DOUBLE PRECISION NOT NULL,       -- when it began
    at DOUBLE PRECISION NOT NULL,          -- when this was written
    why TEXT NOT NULL,                     -- what it waits for, or what stopped it; empty: nothing
    PRIMARY KEY (receiver, header, node)
);
