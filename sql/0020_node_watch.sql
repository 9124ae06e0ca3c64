-- How often in a row a data node did not answer the watch. Who missed too many rounds is offline: another member takes its groups.

CREATE TABLE node_watch (
    receiver TEXT NOT NULL,                -- the receiver
    node TEXT NOT NULL,                    -- the node
    misses BIGINT NOT NULL,                -- rounds in a row that it did not answer; 0: it answered the last one
    earlier BIGINT NOT NULL,               -- the same after the round before
    since DOUBLE PRECISION NOT NULL,       -- when it missed the first of them, 0 for none
    why TEXT NOT NULL,                     -- what it said, or what was said of it
    at DOUBLE PRECISION NOT NULL,          -- when it was asked last
    PRIMARY KEY (receiver, node)
);
