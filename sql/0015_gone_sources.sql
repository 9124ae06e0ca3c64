-- Which merged files may show what is gone at its site: a read looks at these alone, and not at every file that ever settled.

ALTER TABLE merge_account ADD COLUMN gone INTEGER NOT NULL DEFAULT 0;  -- 1: a source of it was gone at its site at some time

UPDATE merge_account SET gone = 1 WHERE EXISTS (
    SELECT 1 FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id
    WHERE l.merged_id = merge_account.merged_id AND f.role = 'source' AND NOT EXISTS (
        SELECT 1 FROM inventory i WHERE i.receiver = f.receiver AND i.site_id = f.site_id AND i.path = f.path AND i.live = 1
    )
);

CREATE INDEX merge_account_gone ON merge_account (gone) WHERE gone = 1;
CREATE INDEX catalog_kept ON catalog_file (receiver, rank_unsequence)
    WHERE role = 'source' AND state = 'live' AND rank_unsequence < 0;
