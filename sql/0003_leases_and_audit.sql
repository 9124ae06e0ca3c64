-- Leases by the database's own clock with a fencing number; the operator's decisions.

CREATE TABLE lease (
    name TEXT PRIMARY KEY,                 -- link:<link>, load:<receiver>, merge:<receiver>/<database>/<partition>
    fence BIGINT NOT NULL,                 -- rises by one with every taking
    holder TEXT NOT NULL,                  -- the run or batch that holds it, '' when free
    host TEXT NOT NULL,                    -- host of the holder, with its pid namespace where it is not the first
    boot_id TEXT NOT NULL,                 -- the kernel's boot id there: another one means that every process of before is gone
    pid BIGINT NOT NULL,                   -- 0 between the tasks of a run
    process_start TEXT NOT NULL,           -- start time of that process, so a reused pid is not mistaken for it
    taken DOUBLE PRECISION NOT NULL,       -- when this holder took it, seconds since 1970
    expires DOUBLE PRECISION NOT NULL      -- by the lease clock (docs/formats/ledger.md): the server's, or this machine's boot clock
);

CREATE TABLE audit (
    audit_id {serial},                     -- grows with every decision
    at DOUBLE PRECISION NOT NULL,          -- when, by the database's clock
    who TEXT NOT NULL,                     -- user@host of the command
    action TEXT NOT NULL,                  -- approve, owners transfer, quarantine release, …
    subject TEXT NOT NULL,                 -- what was decided about
    detail TEXT NOT NULL                   -- JSON object, its keys by kind
);
