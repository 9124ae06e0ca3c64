-- Where the log of a data group last told all that it tells. What is before may be given up once every member has it.

ALTER TABLE group_cover ADD COLUMN snapshot BIGINT NOT NULL DEFAULT 0;             -- version before its first record; 0: none
ALTER TABLE group_cover ADD COLUMN snapshot_at DOUBLE PRECISION NOT NULL DEFAULT 0; -- when it was settled
