-- Until when what a site has is known: the time of its last whole listing, by the clock of the machine that listed.

ALTER TABLE link ADD COLUMN listed DOUBLE PRECISION;   -- begin of the newest whole listing of which this ledger knows every file
ALTER TABLE link ADD COLUMN selected DOUBLE PRECISION; -- begin of the newest whole listing that a run selected from
ALTER TABLE landing ADD COLUMN listed DOUBLE PRECISION; -- the sender's time of the run's whole listing, from the manifest

UPDATE link SET listed = (SELECT started FROM run WHERE run.run_id = link.last_run AND run.state = 'finished');
UPDATE link SET selected = listed;
