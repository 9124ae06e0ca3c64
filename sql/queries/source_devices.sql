-- Devices of the files whose content a receiver shows, each with the source path it came from. Parameters: receiver, site.
SELECT DISTINCT d.device, f.path
FROM catalog_file f JOIN catalog_device d ON d.file_id = f.file_id
WHERE f.receiver = :receiver AND f.site_id = :site AND f.role = 'source' AND (f.state = 'live' OR f.file_id IN (
    SELECT l.source_id FROM lineage l JOIN catalog_file m ON m.file_id = l.merged_id WHERE m.state = 'live'))
