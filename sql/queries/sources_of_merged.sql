-- The very sources that a merged file was made from, also over merged files before it. Parameters: file_id.
SELECT f.file_id, f.path, f.state FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id
WHERE l.merged_id = :file_id AND f.role = 'source' ORDER BY f.file_id
