-- Names somebody may have meant, newest first. Parameters: most.
SELECT name FROM (
    SELECT name FROM site UNION SELECT site_id FROM site UNION SELECT link FROM link
) AS few
UNION ALL SELECT run_id FROM (SELECT run_id FROM run ORDER BY run_id DESC LIMIT :most) AS runs
UNION ALL SELECT landing FROM (SELECT landing FROM landing ORDER BY found DESC LIMIT :most) AS landings
UNION ALL SELECT device FROM (SELECT DISTINCT device FROM catalog_device LIMIT :most) AS devices
UNION ALL SELECT path FROM (SELECT path FROM file ORDER BY changed DESC LIMIT :most) AS files
UNION ALL SELECT path FROM (SELECT path FROM skipped_file ORDER BY since DESC LIMIT :most) AS skipped
UNION ALL SELECT path FROM (SELECT path FROM inventory LIMIT :most) AS inventories
