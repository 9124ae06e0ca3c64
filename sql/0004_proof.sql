-- What proof remembers: data files whose digest was checked, so that a report need not read every byte every time.

CREATE TABLE file_check (
    receiver TEXT NOT NULL,                -- the receiver that keeps the file
    location TEXT NOT NULL,                -- relative to the receiver's root
    size BIGINT NOT NULL,                  -- bytes when it was checked
    ctime_ns BIGINT NOT NULL,              -- time of the inode's last change then, nanoseconds: nobody can set it back
    inode BIGINT NOT NULL,                 -- inode then: size, time and inode unchanged means the answer still holds
    sha256 TEXT NOT NULL,                  -- digest found
    checked DOUBLE PRECISION NOT NULL,     -- when it was checked
    PRIMARY KEY (receiver, location)
);

CREATE INDEX file_state ON file (link, state);
CREATE INDEX sent_landing_link ON sent_landing (link, sequence);
