-- The receiver's side of the ledger: landings, what the sites have, catalog, lineage, owners, schema, troubles.

CREATE TABLE landing (
    receiver TEXT NOT NULL,
    landing TEXT NOT NULL,                 -- folder name below landing/<site id>/
    site_id TEXT NOT NULL,
    sequence BIGINT NOT NULL,              -- from its manifest
    previous TEXT,                         -- the landing before it, from its manifest
    run_id TEXT NOT NULL,
    part BIGINT NOT NULL,
    state TEXT NOT NULL,                   -- waiting (a gap before it) | found | loading | loaded | rejected
    reason TEXT,                           -- waiting, rejected: why
    manifest_sha256 TEXT NOT NULL,
    files BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    found DOUBLE PRECISION NOT NULL,
    loaded DOUBLE PRECISION,
    receipt TEXT,                          -- the answer as written to receipt.json
    PRIMARY KEY (receiver, landing)
);

CREATE TABLE inventory (
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    path TEXT NOT NULL,                    -- a sealed file the site has or had
    size BIGINT NOT NULL,
    mtime BIGINT NOT NULL,
    extent TEXT NOT NULL,                  -- JSON [[device, start, end], …] from its .resource
    live INTEGER NOT NULL,                 -- 1 while the site has it
    generation BIGINT NOT NULL,            -- newest generation a manifest carried, 0 while none did
    landing TEXT NOT NULL,                 -- manifest that last spoke of it
    PRIMARY KEY (receiver, site_id, path)
);

CREATE TABLE catalog_file (
    file_id {serial},
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    role TEXT NOT NULL,                    -- source | merged
    path TEXT NOT NULL,                    -- source path; '' for merged
    generation BIGINT NOT NULL,            -- 0 for merged
    database_name TEXT NOT NULL,
    model TEXT NOT NULL,                   -- tree | table | mixed
    format INTEGER NOT NULL,               -- TsFile version byte: 3 or 4
    partition_from BIGINT NOT NULL,        -- catalog time partitions it touches, inclusive
    partition_to BIGINT NOT NULL,
    location TEXT NOT NULL,                -- relative to the receiver's root
    sha256 TEXT NOT NULL,
    size BIGINT NOT NULL,
    mods_location TEXT NOT NULL,           -- '' without
    mods_sha256 TEXT NOT NULL,
    points BIGINT NOT NULL,                -- from its own statistics, before deletions
    rank_unsequence INTEGER NOT NULL,      -- who wins: these five in order, higher wins (DESIGN §3)
    rank_version BIGINT NOT NULL,
    rank_inner BIGINT NOT NULL,
    rank_cross BIGINT NOT NULL,
    rank_created BIGINT NOT NULL,
    state TEXT NOT NULL,                   -- live | retired (no reader sees it; file goes after the grace) | reclaimed (file gone)
    visible INTEGER NOT NULL,              -- 1: readers read it; 0: a merged file stands for it, or it is retired
    marked TEXT,                           -- 'dropped' where the site dropped it and deletes = keep
    undecodable TEXT,                      -- JSON list of "device.measurement: encoding" kept as source, NULL where all decode
    landing TEXT,                          -- landing it came with, NULL for merged
    created DOUBLE PRECISION NOT NULL,
    retired DOUBLE PRECISION
);

CREATE TABLE catalog_device (
    file_id BIGINT NOT NULL,
    device TEXT NOT NULL,                  -- canonical device name
    start_time BIGINT NOT NULL,            -- first and last point, the site's unit
    end_time BIGINT NOT NULL,
    points BIGINT NOT NULL,
    PRIMARY KEY (file_id, device)
);

CREATE TABLE lineage (
    merged_id BIGINT NOT NULL,
    source_id BIGINT NOT NULL,
    PRIMARY KEY (merged_id, source_id)
);

CREATE TABLE merge_account (
    merged_id BIGINT PRIMARY KEY,          -- the merged file
    batch TEXT NOT NULL,
    points_in BIGINT NOT NULL,             -- in = out + overwritten + deleted
    points_out BIGINT NOT NULL,
    overwritten BIGINT NOT NULL,
    deleted BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL
);

CREATE TABLE pending_drop (
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    path TEXT NOT NULL,
    generation BIGINT NOT NULL,
    kind TEXT NOT NULL,                    -- superseded | dropped
    covered_by TEXT NOT NULL,              -- JSON list of covering source paths
    landing TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    state TEXT NOT NULL,                   -- pending | waiting (operator) | done
    reason TEXT,
    PRIMARY KEY (receiver, site_id, path, generation)
);

CREATE TABLE owner (
    receiver TEXT NOT NULL,
    device TEXT NOT NULL,
    site_id TEXT NOT NULL,
    since DOUBLE PRECISION NOT NULL,
    landing TEXT NOT NULL,                 -- the landing that claimed it
    PRIMARY KEY (receiver, device)
);

CREATE TABLE refusal (
    refusal_id {serial},
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    path TEXT NOT NULL,
    generation BIGINT NOT NULL,
    landing TEXT NOT NULL,
    device TEXT NOT NULL,                  -- the first device that another site owns
    owner_site TEXT NOT NULL,
    owner_since DOUBLE PRECISION NOT NULL,
    location TEXT NOT NULL,                -- where its bytes wait for a transfer of ownership
    state TEXT NOT NULL,                   -- refused | replayed | superseded
    at DOUBLE PRECISION NOT NULL
);

CREATE TABLE quarantine (
    quarantine_id {serial},
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    path TEXT NOT NULL,
    generation BIGINT NOT NULL,
    landing TEXT NOT NULL,
    reason TEXT NOT NULL,
    error_kind BIGINT NOT NULL,
    location TEXT NOT NULL,                -- relative to the receiver's root
    state TEXT NOT NULL,                   -- held | released | dropped | superseded
    at DOUBLE PRECISION NOT NULL
);

CREATE TABLE schema_series (
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    series TEXT NOT NULL,                  -- full path, canonical quoting
    database_name TEXT NOT NULL,
    type TEXT NOT NULL,
    encoding TEXT NOT NULL,
    compression TEXT NOT NULL,
    aligned INTEGER NOT NULL,
    state TEXT NOT NULL,                   -- live | deleted
    clash TEXT,                            -- type another site or file gives it, NULL where they agree
    source TEXT NOT NULL,                  -- schema log path, or the TsFile that declared it
    PRIMARY KEY (receiver, site_id, series)
);

CREATE TABLE table_width (
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    database_name TEXT NOT NULL,
    table_name TEXT NOT NULL,
    tags INTEGER NOT NULL,                 -- the table's latest number of tags; readers pad devices to it
    PRIMARY KEY (receiver, site_id, database_name, table_name)
);

CREATE TABLE schema_received (
    receiver TEXT NOT NULL,
    site_id TEXT NOT NULL,
    path TEXT NOT NULL,                    -- schema log path at the site
    epoch BIGINT NOT NULL,
    position BIGINT NOT NULL,              -- bytes kept at the receiver
    PRIMARY KEY (receiver, site_id, path)
);

CREATE INDEX catalog_visible ON catalog_file (receiver, visible, database_name, partition_from);
CREATE INDEX catalog_path ON catalog_file (receiver, site_id, path);
CREATE INDEX catalog_device_name ON catalog_device (device);
CREATE INDEX landing_site ON landing (receiver, site_id, sequence);
