-- What an orchestrator's newest task of a link does, or how it ended: between two tries no process says it.

CREATE TABLE link_attempt (
    link TEXT PRIMARY KEY,                 -- one row a link: the newest try of any of its tasks
    task TEXT NOT NULL,                    -- the task's name: a step of the run
    state TEXT NOT NULL,                   -- working | done | retrying (it failed, another try follows) | failed
    try_number BIGINT NOT NULL,            -- counted from 1
    tries BIGINT NOT NULL,                 -- how many there are at most
    next_try DOUBLE PRECISION,             -- when the next one is due, seconds since 1970; NULL where none follows
    error TEXT NOT NULL,                   -- why the try failed, '' where it did not
    hint TEXT NOT NULL,                    -- the next command, '' where there is none
    host TEXT NOT NULL,                    -- of the worker; as in lease
    boot_id TEXT NOT NULL,                 -- as in lease
    pid BIGINT NOT NULL,                   -- as in lease
    process_start TEXT NOT NULL,           -- as in lease
    noted DOUBLE PRECISION NOT NULL        -- when, by the database's clock
);
