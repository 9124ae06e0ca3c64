-- Where dead letters of tasks lie: batches that a consumer gave up. They count as done, so nothing else tells of them.

CREATE TABLE change_dead_letter (
    task TEXT NOT NULL,                    -- the task
    host TEXT NOT NULL,                    -- the machine of its consumer
    place TEXT NOT NULL,                   -- the file there
    letters BIGINT NOT NULL,               -- how many of this task are in it: counted when the consumer began, and since
    at DOUBLE PRECISION NOT NULL,          -- when the newest came, or they were counted
    PRIMARY KEY (task, host, place)
);
