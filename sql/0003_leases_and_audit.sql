-- Leases by the database's own clock with a fencing number; the operator's decisions.

CREATE TABLE lease (
    name TEXT PRIMARY KEY,                 -- link:<link>, load:<receiver>, merge:<receiver>/<database>/<partition>
    fence BIGINT NOT NULL,                 -- rises by one with every taking
    holder TEXT NOT NULL,                  -- the run or batch that holds it, '' when free
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid BIGINT NOT NULL,                   -- 0 between the tasks of a run
    process_start TEXT NOT NULL,           -- start time of that process, so a reused pid is not mistaken for it
    expires DOUBLE PRECISION NOT NULL      -- by the database's clock
);

CREATE TABLE audit (
    audit_id {serial},
    at DOUBLE PRECISION NOT NULL,
    who TEXT NOT NULL,                     -- user@host of the command
    action TEXT NOT NULL,                  -- approve, owners transfer, quarantine release, …
    subject TEXT NOT NULL,
    detail TEXT NOT NULL                   -- JSON
);
