-- Who works on a receiver's line under the cap that its links and its nodes share.

CREATE TABLE line_place (
    place TEXT PRIMARY KEY,                -- random, one for each sending at work
    receiver TEXT NOT NULL,                -- the receiver whose [receivers.NAME] bandwidth is shared
    holder TEXT NOT NULL,                  -- a run, or migrate-…, as its lease calls it
    host TEXT NOT NULL,                    -- as in lease
    boot_id TEXT NOT NULL,                 -- as in lease
    pid BIGINT NOT NULL,                   -- as in lease
    process_start TEXT NOT NULL,           -- as in lease
    wish DOUBLE PRECISION NOT NULL,        -- bytes a second that it could do with
    rate DOUBLE PRECISION NOT NULL,        -- bytes a second that it takes; those of a receiver are never more than its cap together
    expires DOUBLE PRECISION NOT NULL      -- by the lease clock; renewed while it works
);
