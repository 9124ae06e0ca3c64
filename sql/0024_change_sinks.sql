-- Sinks: tables that follow the changes of a source. A sink is a task; here stands what it writes at present.

CREATE TABLE change_sink (
    name TEXT NOT NULL PRIMARY KEY,        -- the sink, and its task
    number BIGINT NOT NULL,                -- of its newest batch; it rises
    first_seq BIGINT NOT NULL,             -- the first transaction of that batch
    end_seq BIGINT NOT NULL,               -- the first transaction behind it
    version_ts BIGINT NOT NULL,            -- versionTs of the task for which it was planned
    is_written BIGINT NOT NULL,            -- 1: it is written, and the points say so
    at DOUBLE PRECISION NOT NULL           -- when it was planned, or written
);

CREATE TABLE change_sink_table (
    sink TEXT NOT NULL,                    -- the sink
    name TEXT NOT NULL,                    -- the table at the source, "database.table"
    state TEXT NOT NULL,                   -- whole, partial, stopped
    key_columns TEXT NOT NULL,             -- JSON list of the columns of its key
    begun BIGINT NOT NULL,                 -- the transaction with which a reading of all its rows began that goes on, 0: none
    seq BIGINT NOT NULL,                   -- the transaction since which its state is what it is
    why TEXT NOT NULL,                     -- partial, stopped: the reason
    PRIMARY KEY (sink, name)
);
