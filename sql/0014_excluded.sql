-- What a link's patterns leave out never comes: nothing that vanished waits for it. Of files told before nobody knows; those that
-- no manifest carried count as left out.

ALTER TABLE inventory ADD COLUMN excluded INTEGER NOT NULL DEFAULT 0;  -- 1: the link does not send it, by its manifest

UPDATE inventory SET excluded = 1 WHERE generation = 0;
