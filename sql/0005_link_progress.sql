-- How far the run at work is, for who asks from another process; shown and never decided by.

CREATE TABLE link_progress (
    link TEXT PRIMARY KEY,                 -- one row a link: its newest run that said anything
    run_id TEXT NOT NULL,                  -- the run that said it
    phase TEXT NOT NULL,                   -- the step it was at
    files BIGINT NOT NULL,                 -- files done in this step by the process at work
    files_total BIGINT NOT NULL,           -- files it set out to do, 0 when unknown
    bytes BIGINT NOT NULL,                 -- bytes done in this step
    bytes_total BIGINT NOT NULL,           -- bytes it set out to do, 0 when unknown
    rate DOUBLE PRECISION NOT NULL,        -- bytes a second lately
    seconds_left DOUBLE PRECISION,         -- to the end at that rate, NULL when unknown
    noted DOUBLE PRECISION NOT NULL        -- when, by the database's clock
);
