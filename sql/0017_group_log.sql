-- What the ledger knows of the log that each data group has at its members: who may append, and what it has settled.

CREATE TABLE group_log (
    receiver TEXT NOT NULL,                -- the receiver
    header TEXT NOT NULL,                  -- header node of the group
    epoch BIGINT NOT NULL,                 -- newest epoch that was given; it is given once
    master TEXT NOT NULL,                  -- the member that has it
    active BIGINT NOT NULL,                -- 1: the barrier of this epoch is at its quorum; 0: not, or not known
    settled_epoch BIGINT NOT NULL,         -- epoch of the last record whose outcome is in the ledger
    settled_version BIGINT NOT NULL,       -- version of that record
    operation TEXT NOT NULL,               -- the commit that is at work behind it, '' for none
    in_step TEXT NOT NULL,                 -- JSON list of the members that have every settled record
    at DOUBLE PRECISION NOT NULL,          -- when this row last changed
    PRIMARY KEY (receiver, header)
);
