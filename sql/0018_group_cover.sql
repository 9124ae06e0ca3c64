-- Which slots the log of each data group tells the catalog of. Another partition table gives and takes slots; its next commit says so.

CREATE TABLE group_cover (
    receiver TEXT NOT NULL,                -- the receiver
    header TEXT NOT NULL,                  -- header node of the group
    table_epoch BIGINT NOT NULL,           -- partition table by which it has these slots
    slots TEXT NOT NULL,                   -- JSON list of [first, last], both inclusive
    PRIMARY KEY (receiver, header)
);
