-- The accounts of merged files: in = out + overwritten + deleted. Parameters: receiver, site (UUID).
SELECT a.merged_id, a.points_in, a.points_out, a.overwritten, a.deleted
FROM merge_account a JOIN catalog_file f ON f.file_id = a.merged_id
WHERE f.receiver = :receiver AND f.site_id = :site
ORDER BY a.merged_id
