-- The files that a merged file was made from. Parameters: file_id.
SELECT f.file_id, f.path, f.state FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id
WHERE l.merged_id = :file_id ORDER BY f.file_id
