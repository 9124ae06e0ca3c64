-- The link's side of the ledger: what a site has, what was acknowledged, the runs and their items.
-- Times are seconds since 1970 (UTC) unless a column says otherwise. {serial} is the dialect's growing primary key.

CREATE TABLE site (
    site_id TEXT PRIMARY KEY,              -- the site's UUID
    name TEXT NOT NULL,                    -- its name in tidemark.toml, or from the first manifest
    time_unit TEXT NOT NULL,               -- ms, us or ns: TsFiles do not say
    partition_interval_ms BIGINT NOT NULL, -- the site's own time partition
    first_seen DOUBLE PRECISION NOT NULL   -- when this ledger first heard of it
);

CREATE TABLE link (
    link TEXT PRIMARY KEY,                 -- the link's name in tidemark.toml
    site_id TEXT NOT NULL,                 -- its site
    receiver TEXT NOT NULL,                -- its receiver
    next_sequence BIGINT NOT NULL,         -- sequence number of the next landing, from 1
    last_landing TEXT,                     -- id of the newest landing made by this link
    last_run TEXT,                         -- newest run
    last_success DOUBLE PRECISION,         -- end of the newest run that finished
    guard TEXT,                            -- why drops wait, NULL where they do not
    guard_run TEXT,                        -- the run whose drops wait for approve
    approved_run TEXT,                     -- the run whose drops the operator approved
    source_tier TEXT,                      -- what the probe of the site's store found
    target_tier TEXT                       -- what the probe of the receiver's store found
);

CREATE TABLE file (
    link TEXT NOT NULL,                    -- the link that sends it
    path TEXT NOT NULL,                    -- source path, relative to the site's store, or absolute
    size BIGINT NOT NULL,                  -- TsFile bytes at the last listing that selected it
    mtime BIGINT NOT NULL,                 -- whole seconds
    inode BIGINT NOT NULL,                 -- 0 where the listing had none
    mods_size BIGINT NOT NULL,             -- bytes of .mods/.mods2 acknowledged, 0 without
    mods_mtime BIGINT NOT NULL DEFAULT 0,  -- whole seconds, its own; 0 without, or not known (from a manifest)
    state TEXT NOT NULL,                   -- waiting (known, not acknowledged) | acked | gone (vanished and told)
    generation BIGINT NOT NULL,            -- acknowledged generation, 0 before the first (acked with 0: adopted, never sent)
    sha256 TEXT NOT NULL,                  -- digest of the acknowledged TsFile, '' before the first
    mods_sha256 TEXT NOT NULL,             -- digest of the acknowledged mods prefix, '' without
    landing TEXT,                          -- landing that carried the acknowledged generation
    first_seen DOUBLE PRECISION NOT NULL,     -- when a listing first showed it
    changed DOUBLE PRECISION NOT NULL,     -- when this row last changed
    reason TEXT,                           -- why it is not acknowledged yet, NULL otherwise
    PRIMARY KEY (link, path)
);

CREATE TABLE file_extent (
    link TEXT NOT NULL,                    -- the link of the file
    path TEXT NOT NULL,                    -- source path of the file
    extent TEXT NOT NULL,                  -- JSON [[device, start, end], …] from .resource, times in the site's unit
    PRIMARY KEY (link, path)
);

CREATE TABLE skipped_file (
    link TEXT NOT NULL,                    -- the link whose listing met it
    path TEXT NOT NULL,                    -- source path that was passed over
    reason TEXT NOT NULL,                  -- "still open", "no .resource yet", "name is not a TsFile's", …
    since DOUBLE PRECISION NOT NULL,       -- first listing in which it was skipped for this reason
    PRIMARY KEY (link, path)
);

CREATE TABLE run (
    run_id TEXT PRIMARY KEY,               -- UTC time and six random hex digits; sorts by time
    link TEXT NOT NULL,                    -- the link it belongs to
    state TEXT NOT NULL,                   -- running | finished | failed (ended with an error, continues next time)
    step TEXT NOT NULL,                    -- opened | recover | select_files | sync_schema | transfer_deletes | transfer_files | finish | cleanup | done
    fence BIGINT NOT NULL,                 -- fencing number of the lease that writes this run
    started DOUBLE PRECISION NOT NULL,     -- when it was opened
    ended DOUBLE PRECISION,                -- when it finished or failed, NULL while it runs
    options TEXT NOT NULL,                 -- JSON: only these paths, send all again, …
    inventory TEXT,                        -- JSON inventory change to go into the manifest, fixed at selection
    files BIGINT NOT NULL,                 -- files landed by this run
    bytes BIGINT NOT NULL,                 -- their bytes
    sent_bytes BIGINT NOT NULL,            -- bytes that crossed the wire, resent ones included
    dropped BIGINT NOT NULL,               -- drops told to the receiver
    pending BIGINT NOT NULL,               -- drops that wait for approval, files left for the next run
    schema_bytes BIGINT NOT NULL,          -- bytes of schema logs landed
    error_kind BIGINT,                     -- exit code of what ended it badly
    error TEXT,                            -- what ended it badly, in words
    hint TEXT                              -- the next command to run
);

CREATE TABLE run_alias (
    external TEXT PRIMARY KEY,             -- an orchestrator's run id (dag id / run id)
    run_id TEXT NOT NULL                   -- our run
);

CREATE TABLE run_item (
    run_id TEXT NOT NULL,                  -- the run that plans it
    path TEXT NOT NULL,                    -- source path
    action TEXT NOT NULL,                  -- send (TsFile, resource, mods) | mods (mods alone) | drop | supersede
    state TEXT NOT NULL,                   -- planned | pinned (linked) | sent (durable at the receiver) | landed | failed | vanished | held (waits for approval)
    size BIGINT NOT NULL,                  -- bytes at selection
    mtime BIGINT NOT NULL,                 -- whole seconds at selection
    inode BIGINT NOT NULL,                 -- 0 where the listing had none
    mods_path TEXT NOT NULL,               -- '' without
    mods_size BIGINT NOT NULL,             -- prefix length fixed at selection
    mods_mtime BIGINT NOT NULL DEFAULT 0,  -- whole seconds at selection, 0 without
    resource_size BIGINT NOT NULL,         -- bytes of .resource, 0 without
    generation BIGINT NOT NULL,            -- the generation this item makes
    part BIGINT,                           -- landing part it went into
    sha256 TEXT,                           -- digest made at the source, checked at the target
    mods_sha256 TEXT,                      -- digest of the mods prefix, NULL until made
    resource_sha256 TEXT,                  -- digest of .resource, NULL until made
    verified TEXT,                         -- source: digest made at the source | target: only at the target; NULL before
    covered_by TEXT,                       -- supersede: JSON list of the covering paths
    reason TEXT,                           -- failed, vanished, held: why
    PRIMARY KEY (run_id, path)
);

CREATE TABLE sent_landing (
    landing TEXT PRIMARY KEY,              -- <run id>-<part>
    run_id TEXT NOT NULL,                  -- the run that made it
    link TEXT NOT NULL,                    -- the link that sent it
    part BIGINT NOT NULL,                  -- from 1
    sequence BIGINT NOT NULL,              -- fixed before the manifest is renamed
    previous TEXT,                         -- landing id before it, NULL for the first
    state TEXT NOT NULL,                   -- closing (manifest about to be renamed) | landed | answered (receipt read)
    last INTEGER NOT NULL,                 -- 1: the run's last part
    created DOUBLE PRECISION NOT NULL,     -- goes into the manifest, so that it can be made again byte for byte
    manifest_sha256 TEXT NOT NULL,         -- digest of manifest.json as renamed
    files BIGINT NOT NULL,                 -- files in it
    bytes BIGINT NOT NULL,                 -- their bytes
    landed DOUBLE PRECISION,               -- when its manifest was renamed
    receipt TEXT,                          -- the receiver's answer, JSON
    UNIQUE (link, sequence)
);

CREATE TABLE schema_position (
    link TEXT NOT NULL,                    -- the link that ships the log
    path TEXT NOT NULL,                    -- schema log file at the site
    position BIGINT NOT NULL,              -- bytes acknowledged
    mtime BIGINT NOT NULL,                 -- whole seconds, when they were read: same size and mtime is not read again
    prefix_sha256 TEXT NOT NULL,           -- digest of those bytes: a shrunk or rewritten log is noticed
    epoch BIGINT NOT NULL,                 -- rises when the log was truncated or replaced and is sent from 0 again
    updated DOUBLE PRECISION NOT NULL,     -- when this row last changed
    PRIMARY KEY (link, path)
);

CREATE TABLE run_schema (
    run_id TEXT NOT NULL,                  -- the run that sent it
    path TEXT NOT NULL,                    -- schema log file at the site
    epoch BIGINT NOT NULL,                 -- the log's epoch, see schema_position
    start BIGINT NOT NULL,                 -- first byte sent
    size BIGINT NOT NULL,                  -- bytes sent
    mtime BIGINT NOT NULL,                 -- whole seconds, when they were read
    sha256 TEXT NOT NULL,                  -- digest of the bytes sent
    prefix_sha256 TEXT NOT NULL,           -- digest of the log from 0 to start + size
    landed_path TEXT NOT NULL,             -- file below the landing
    state TEXT NOT NULL,                   -- sent (durable at the receiver) | landed
    PRIMARY KEY (run_id, path)
);

CREATE TABLE event (
    event_id {serial},                     -- grows with every event
    at DOUBLE PRECISION NOT NULL,          -- when, by the database's clock
    site_id TEXT,                          -- the site concerned, NULL where none is
    link TEXT,                             -- the link concerned
    run_id TEXT,                           -- the run concerned
    landing TEXT,                          -- the landing concerned
    path TEXT,                             -- the file, device or other thing it is about
    kind TEXT NOT NULL,                    -- a word of docs/formats/journal.md
    detail TEXT NOT NULL                   -- JSON object, its keys by kind
);

CREATE INDEX run_by_link ON run (link, state);
CREATE INDEX run_item_state ON run_item (run_id, state);
CREATE INDEX event_path ON event (path);
CREATE INDEX event_run ON event (run_id);
