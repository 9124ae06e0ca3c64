-- A device in the catalog: its live files, and how far they reach. Parameters: device.
SELECT f.receiver, f.site_id, COUNT(*) AS files, SUM(d.points) AS points, MIN(d.start_time) AS start_time,
       MAX(d.end_time) AS end_time, s.time_unit
FROM catalog_device d JOIN catalog_file f ON f.file_id = d.file_id JOIN site s ON s.site_id = f.site_id
WHERE d.device = :device AND f.state = 'live' AND f.visible = 1
GROUP BY f.receiver, f.site_id, s.time_unit ORDER BY f.receiver, f.site_id
