-- The receiver's side of the ledger: landings, what the sites have, catalog, lineage, owners, schema, troubles.

CREATE TABLE landing (
    receiver TEXT NOT NULL,                -- the receiver it lies at
    landing TEXT NOT NULL,                 -- folder name below landing/<site id>/
    site_id TEXT NOT NULL,                 -- the site it came from
    sequence BIGINT NOT NULL,              -- from its manifest
    previous TEXT,                         -- the landing before it, from its manifest
    run_id TEXT NOT NULL,                  -- the run that made it
    part BIGINT NOT NULL,                  -- its part of that run, from 1
    state TEXT NOT NULL,                   -- waiting (a gap before it) | found | loading | loaded | rejected
    reason TEXT,                           -- waiting, rejected: why
    manifest_sha256 TEXT NOT NULL,         -- digest of manifest.json as found
    files BIGINT NOT NULL,                 -- files its manifest lists
    bytes BIGINT NOT NULL,                 -- their bytes
    found DOUBLE PRECISION NOT NULL,       -- when the receiver first saw its manifest
    loaded DOUBLE PRECISION,               -- when its receipt was written
    receipt TEXT,                          -- the answer as written to receipt.json
    folder_mtime BIGINT NOT NULL DEFAULT 0, -- its folder's, ns since 1970, when all was done in it; 0 before
    PRIMARY KEY (receiver, site_id, landing)
);

CREATE TABLE inventory (
    receiver TEXT NOT NULL,                -- the receiver that was told
    site_id TEXT NOT NULL,                 -- the site that has it
    path TEXT NOT NULL,                    -- a sealed file the site has or had
    size BIGINT NOT NULL,                  -- TsFile bytes at the site
    mtime BIGINT NOT NULL,                 -- whole seconds
    extent TEXT NOT NULL,                  -- JSON [[device, start, end], …] from its .resource
    live INTEGER NOT NULL,                 -- 1 while the site has it
    generation BIGINT NOT NULL,            -- newest generation a manifest carried, 0 while none did
    landing TEXT NOT NULL,                 -- manifest that last spoke of it
    PRIMARY KEY (receiver, site_id, path)
);

CREATE TABLE catalog_file (
    file_id {serial},                      -- grows with every file
    receiver TEXT NOT NULL,                -- the receiver that keeps it
    site_id TEXT NOT NULL,                 -- the site it came from
    role TEXT NOT NULL,                    -- source | merged
    path TEXT NOT NULL,                    -- source path; '' for merged
    generation BIGINT NOT NULL,            -- 0 for merged
    database_name TEXT NOT NULL,           -- IoTDB database its devices belong to
    model TEXT NOT NULL,                   -- tree | table | mixed
    format INTEGER NOT NULL,               -- TsFile version byte: 3 or 4
    partition_from BIGINT NOT NULL,        -- catalog time partitions it touches, inclusive
    partition_to BIGINT NOT NULL,          -- last catalog time partition it touches
    location TEXT NOT NULL,                -- relative to the receiver's root
    sha256 TEXT NOT NULL,                  -- digest of the TsFile at location
    size BIGINT NOT NULL,                  -- its bytes
    mods_location TEXT NOT NULL,           -- '' without
    mods_sha256 TEXT NOT NULL,             -- digest of the mods, '' without
    points BIGINT NOT NULL,                -- from its own statistics, before deletions
    rank_unsequence INTEGER NOT NULL,      -- who wins: these five in order, higher wins (DESIGN §3)
    rank_version BIGINT NOT NULL,          -- version in the file name
    rank_inner BIGINT NOT NULL,            -- inner compaction count in the name
    rank_cross BIGINT NOT NULL,            -- cross compaction count in the name
    rank_created BIGINT NOT NULL,          -- creation time in the name, ms
    state TEXT NOT NULL,                   -- live | retired (no reader sees it; file goes after the grace) | reclaimed (file gone)
    visible INTEGER NOT NULL,              -- 1: readers read it; 0: a merged file stands for it, or it is retired
    marked TEXT,                           -- 'dropped' where the site dropped it and deletes = keep
    undecodable TEXT,                      -- JSON list of "device.measurement: encoding" kept as source, NULL where all decode
    landing TEXT,                          -- landing it came with, NULL for merged
    created DOUBLE PRECISION NOT NULL,     -- when the catalog took it
    retired DOUBLE PRECISION               -- when readers stopped seeing it, NULL before
);

CREATE TABLE catalog_device (
    file_id BIGINT NOT NULL,               -- the file
    device TEXT NOT NULL,                  -- canonical device name
    start_time BIGINT NOT NULL,            -- first and last point, the site's unit
    end_time BIGINT NOT NULL,              -- last point, the site's unit
    points BIGINT NOT NULL,                -- points of the device in the file
    PRIMARY KEY (file_id, device)
);

CREATE TABLE lineage (
    merged_id BIGINT NOT NULL,             -- the merged file
    source_id BIGINT NOT NULL,             -- a file it was derived from, down to the very sources of what was merged before
    PRIMARY KEY (merged_id, source_id)
);

CREATE INDEX lineage_source ON lineage (source_id);

CREATE TABLE merge_account (
    merged_id BIGINT PRIMARY KEY,          -- the merged file
    batch TEXT NOT NULL,                   -- id of the merge that made it
    points_in BIGINT NOT NULL,             -- in = out + overwritten + deleted
    points_out BIGINT NOT NULL,            -- points in the merged file
    overwritten BIGINT NOT NULL,           -- points that a newer value replaced
    deleted BIGINT NOT NULL,               -- points that a deletion removed
    at DOUBLE PRECISION NOT NULL,          -- when the merge was published
    settled DOUBLE PRECISION,              -- since when it stands alone, its sources given up; NULL while they are kept
    waits TEXT                             -- JSON {late path: why}: settled, and to go once its sources came again; NULL else
);

CREATE TABLE merge_kept (
    receiver TEXT NOT NULL,                -- the receiver
    sources TEXT NOT NULL,                 -- digest of the sources' file_ids: the same sources are not tried again
    site_id TEXT NOT NULL,                 -- whose files they are
    database_name TEXT NOT NULL,           -- the database they hold
    files TEXT NOT NULL,                   -- JSON list of the sources' file_ids
    subject TEXT NOT NULL,                 -- the series or file that keeps them apart
    reason TEXT NOT NULL,                  -- why these overlapping files stay as they came
    at DOUBLE PRECISION NOT NULL,          -- when that was found
    PRIMARY KEY (receiver, sources)
);

CREATE TABLE pending_drop (
    receiver TEXT NOT NULL,                -- the receiver that was told
    site_id TEXT NOT NULL,                 -- the site that lost it
    path TEXT NOT NULL,                    -- source path that vanished
    generation BIGINT NOT NULL,            -- the generation that vanished
    kind TEXT NOT NULL,                    -- superseded | dropped
    covered_by TEXT NOT NULL,              -- JSON list of covering source paths
    landing TEXT NOT NULL,                 -- the landing that told it
    at DOUBLE PRECISION NOT NULL,          -- when it was told
    state TEXT NOT NULL,                   -- pending | waiting (operator) | done
    reason TEXT,                           -- what it waits for, NULL when done
    PRIMARY KEY (receiver, site_id, path, generation)
);

CREATE TABLE owner (
    receiver TEXT NOT NULL,                -- the receiver that keeps order
    device TEXT NOT NULL,                  -- canonical device name
    site_id TEXT NOT NULL,                 -- the site that owns it
    since DOUBLE PRECISION NOT NULL,       -- when it was claimed or transferred
    landing TEXT NOT NULL,                 -- the landing that claimed it
    PRIMARY KEY (receiver, device)
);

CREATE TABLE refusal (
    refusal_id {serial},                   -- grows with every refusal
    receiver TEXT NOT NULL,                -- the receiver that refused
    site_id TEXT NOT NULL,                 -- the site that sent the file
    path TEXT NOT NULL,                    -- source path of the refused file
    generation BIGINT NOT NULL,            -- its generation
    landing TEXT NOT NULL,                 -- the landing it came with
    device TEXT NOT NULL,                  -- the first device that another site owns
    owner_site TEXT NOT NULL,              -- the site that owns that device
    owner_since DOUBLE PRECISION NOT NULL, -- since when it owns it
    location TEXT NOT NULL,                -- where its bytes wait for a transfer of ownership, '' when gone
    entry TEXT NOT NULL,                   -- JSON: what its manifest said of it, with the site's data folders
    state TEXT NOT NULL,                   -- refused | replayed | superseded
    at DOUBLE PRECISION NOT NULL           -- when it was refused
);

CREATE TABLE quarantine (
    quarantine_id {serial},                -- the ID that release and drop take
    receiver TEXT NOT NULL,                -- the receiver that holds it
    site_id TEXT NOT NULL,                 -- the site that sent it
    path TEXT NOT NULL,                    -- source path of the file
    generation BIGINT NOT NULL,            -- its generation
    landing TEXT NOT NULL,                 -- the landing it came with
    reason TEXT NOT NULL,                  -- what is wrong with it
    error_kind BIGINT NOT NULL,            -- exit code of that error
    location TEXT NOT NULL,                -- relative to the receiver's root, '' when nothing came or it is gone
    entry TEXT NOT NULL,                   -- JSON: what its manifest said of it, with the site's data folders
    state TEXT NOT NULL,                   -- held | awaiting (a settled file's deletions) | released | dropped | superseded
    at DOUBLE PRECISION NOT NULL           -- when it was put there
);

CREATE TABLE schema_series (
    receiver TEXT NOT NULL,                -- the receiver that knows it
    site_id TEXT NOT NULL,                 -- the site that declared it
    series TEXT NOT NULL,                  -- full path, canonical quoting
    database_name TEXT NOT NULL,           -- its IoTDB database
    type TEXT NOT NULL,                    -- IoTDB data type, e.g. DOUBLE
    encoding TEXT NOT NULL,                -- IoTDB encoding, e.g. GORILLA
    compression TEXT NOT NULL,             -- IoTDB compressor, e.g. LZ4
    aligned INTEGER NOT NULL,              -- 1 where its device is aligned
    state TEXT NOT NULL,                   -- live | deleted
    clash TEXT,                            -- type another site or file gives it, NULL where they agree
    source TEXT NOT NULL,                  -- schema log path, or the TsFile that declared it
    PRIMARY KEY (receiver, site_id, series)
);

CREATE TABLE table_width (
    receiver TEXT NOT NULL,                -- the receiver that knows it
    site_id TEXT NOT NULL,                 -- the site of the table
    database_name TEXT NOT NULL,           -- database of the table model
    table_name TEXT NOT NULL,              -- the table
    tags INTEGER NOT NULL,                 -- the table's latest number of tags; readers pad devices to it
    PRIMARY KEY (receiver, site_id, database_name, table_name)
);

CREATE TABLE schema_received (
    receiver TEXT NOT NULL,                -- the receiver that keeps the log
    site_id TEXT NOT NULL,                 -- the site of the log
    path TEXT NOT NULL,                    -- schema log path at the site
    epoch BIGINT NOT NULL,                 -- as in the manifest: rises when the log began anew
    position BIGINT NOT NULL,              -- bytes kept at the receiver
    decoded BIGINT NOT NULL,               -- of them, bytes whose records stand in schema_series
    PRIMARY KEY (receiver, site_id, path)
);

CREATE INDEX catalog_visible ON catalog_file (receiver, visible, database_name, partition_from);
CREATE INDEX catalog_path ON catalog_file (receiver, site_id, path);
CREATE INDEX catalog_device_name ON catalog_device (device);
CREATE INDEX landing_site ON landing (receiver, site_id, sequence);
