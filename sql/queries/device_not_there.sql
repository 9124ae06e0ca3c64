-- Files that hold a device and are not acknowledged yet. Parameters: pattern (LIKE over the extent's JSON, \ as escape).
SELECT l.link, l.site_id, e.path, f.state, f.reason
FROM file_extent e JOIN file f ON f.link = e.link AND f.path = e.path JOIN link l ON l.link = e.link
WHERE e.extent LIKE :pattern ESCAPE '\' AND f.state = 'waiting'
ORDER BY e.path LIMIT 20
