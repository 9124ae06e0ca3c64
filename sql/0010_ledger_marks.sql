-- Which ledger a receiver belongs to and how far that one is: the receiver's root says the same in `ledger_mark.json`.

CREATE TABLE ledger_mark (
    receiver TEXT PRIMARY KEY,             -- the receiver's name in tidemark.toml
    mark TEXT NOT NULL,                    -- UUID that ties the receiver's folder to this ledger
    changes BIGINT NOT NULL                -- transactions that changed what readers see, or what was decided; only grows
);
