-- What a merged file stands for: the files it was made from that are live, and the very sources, whatever became of them.
-- Parameters: file_id.
SELECT f.path, f.generation, f.location, f.sha256 FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id
WHERE l.merged_id = :file_id AND (f.state = 'live' OR f.role = 'source') ORDER BY f.file_id
