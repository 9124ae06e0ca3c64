-- How long processes worked on a run, without the pauses between them: a run that was cut and continued has a true rate.

ALTER TABLE run ADD COLUMN worked DOUBLE PRECISION; -- seconds; NULL: opened before this column was
