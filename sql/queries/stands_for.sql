-- The merged files made from one file, directly or over other merged files. Parameters: file_id.
WITH RECURSIVE above(merged_id) AS (
    SELECT merged_id FROM lineage WHERE source_id = :file_id
    UNION
    SELECT l.merged_id FROM lineage l JOIN above a ON l.source_id = a.merged_id
)
SELECT f.file_id, f.location, f.state, f.visible, f.rank_unsequence, m.batch, m.points_in, m.points_out, m.overwritten, m.deleted, m.settled
FROM above a JOIN catalog_file f ON f.file_id = a.merged_id LEFT JOIN merge_account m ON m.merged_id = f.file_id
WHERE f.state = 'live'
ORDER BY f.file_id
