-- Retired files whose grace is over, and whose place no other file needs. Parameters: receiver, before (seconds since 1970).
-- Bytes say what a file brought to an IoTDB that has to forget it: a week more for those, while that server is away.
SELECT f.file_id, f.site_id, f.path, f.location, f.mods_location, f.size
FROM catalog_file f
WHERE f.receiver = :receiver AND f.state = 'retired' AND f.retired < :before
  AND (f.retired < :before - 604800
       OR NOT EXISTS (SELECT 1 FROM iotdb_file i WHERE i.file_id = f.file_id AND i.state <> 'gone')
       OR EXISTS (SELECT 1 FROM lineage l JOIN catalog_file m ON m.file_id = l.merged_id
                  WHERE l.source_id = f.file_id AND m.state = 'live'))
ORDER BY f.file_id
