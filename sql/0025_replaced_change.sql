-- A change that replaces a node by another one, and one that takes the place of a change whose node stays away.

ALTER TABLE cluster_change ADD COLUMN gone TEXT NOT NULL DEFAULT '';  -- who leaves by a `replace`, '' otherwise

DROP INDEX cluster_change_open;
CREATE UNIQUE INDEX cluster_change_open ON cluster_change (receiver) WHERE state NOT IN ('done', 'rolled_back', 'superseded');
