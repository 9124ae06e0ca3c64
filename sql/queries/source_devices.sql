-- How far the devices of the files reach whose content a receiver shows, with the source path each came from; `covered`: 1
-- where other files of the site cover it and are in the catalog. Parameters: receiver, site (UUID), settled (the reason of a
-- superseded file that waits for nothing but its settled file).
SELECT DISTINCT d.device, f.path, d.start_time, d.end_time, CASE WHEN EXISTS (
    SELECT 1 FROM pending_drop p WHERE p.receiver = f.receiver AND p.site_id = f.site_id AND p.path = f.path
       AND p.generation >= f.generation AND p.kind = 'superseded' AND (p.state = 'done' OR p.reason = :settled)
    ) THEN 1 ELSE 0 END AS covered
FROM catalog_file f JOIN catalog_device d ON d.file_id = f.file_id
WHERE f.receiver = :receiver AND f.site_id = :site AND f.role = 'source' AND (f.state = 'live' OR f.file_id IN (
    SELECT l.source_id FROM lineage l JOIN catalog_file m ON m.file_id = l.merged_id WHERE m.state = 'live'))
