-- The files that a merged file stands for, those beneath a merged one among them included: their own papers may be gone.
-- Parameters: file_id.
SELECT f.path, f.generation, f.location, f.sha256 FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id
WHERE l.merged_id = :file_id ORDER BY f.file_id
