-- What a sender has to come back to: files that are not proved yet, files whose bytes do not arrive as they are.

CREATE TABLE unverified (
    link TEXT NOT NULL,                    -- the link that sent it
    path TEXT NOT NULL,                    -- source path
    generation BIGINT NOT NULL,            -- the acknowledged generation whose digest was made at the target only
    since DOUBLE PRECISION NOT NULL,       -- when it was acknowledged
    PRIMARY KEY (link, path)
);

CREATE TABLE link_quarantine (
    quarantine_id {serial},                -- grows with every row; told as s1, s2 …: the sender's
    link TEXT NOT NULL,                    -- the link that could not send it
    path TEXT NOT NULL,                    -- source path
    size BIGINT NOT NULL,                  -- TsFile bytes of the content that did not arrive as it is
    mtime BIGINT NOT NULL,                 -- its whole seconds: another content is sent as any file is
    mods_size BIGINT NOT NULL,             -- bytes of its mods, 0 without
    run_id TEXT NOT NULL,                  -- the run that gave up
    at DOUBLE PRECISION NOT NULL,          -- when it gave up
    reason TEXT NOT NULL,                  -- which block differed
    state TEXT NOT NULL                    -- held (no run sends it) | released or dropped (by the operator) | over (sent, changed, gone)
);

CREATE INDEX link_quarantine_held ON link_quarantine (link, path);
