-- Which merged file was made from which file. Parameters: receiver, site (UUID).
SELECT l.source_id, l.merged_id
FROM lineage l JOIN catalog_file f ON f.file_id = l.merged_id
WHERE f.receiver = :receiver AND f.site_id = :site
ORDER BY l.source_id, l.merged_id
