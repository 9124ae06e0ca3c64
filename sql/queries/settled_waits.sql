-- What settled files hold back of a site's changes, as JSON {path: why}, the newest first. Parameters: site (UUID).
SELECT m.receiver, m.file_id, a.waits FROM merge_account a JOIN catalog_file m ON m.file_id = a.merged_id
WHERE m.site_id = :site AND m.state = 'live' AND a.waits IS NOT NULL ORDER BY m.file_id DESC
