-- Data files that readers see of which the newest look found other bytes than were recorded. Parameters: receiver.
SELECT f.site_id, f.path, f.location FROM catalog_file f
JOIN file_check c ON c.receiver = f.receiver AND c.location = f.location
WHERE f.receiver = :receiver AND f.state = 'live' AND f.visible = 1 AND c.sha256 <> f.sha256
UNION
SELECT f.site_id, f.path, f.mods_location FROM catalog_file f
JOIN file_check c ON c.receiver = f.receiver AND c.location = f.mods_location
WHERE f.receiver = :receiver AND f.state = 'live' AND f.visible = 1 AND f.mods_location <> '' AND c.sha256 <> f.mods_sha256
ORDER BY 1, 2, 3
