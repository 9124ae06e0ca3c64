-- When the log of a member of a data group was last read whole. Nothing else shows a damaged byte in the middle of one.

CREATE TABLE log_reading (
    receiver TEXT NOT NULL,                -- the receiver
    header TEXT NOT NULL,                  -- the header node of the group
    node TEXT NOT NULL,                    -- the member
    at DOUBLE PRECISION NOT NULL,          -- when every record that it kept was read, and sound
    PRIMARY KEY (receiver, header, node)
);
