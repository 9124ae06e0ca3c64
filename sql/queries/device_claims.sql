-- Who owns a device, and files refused because of it. Parameters: device.
SELECT 'owner' AS what, receiver, site_id, since AS at, landing, '' AS path, '' AS owner_site FROM owner WHERE device = :device
UNION ALL
SELECT 'refusal', receiver, site_id, at, landing, path, owner_site FROM refusal WHERE device = :device AND state = 'refused'
ORDER BY what, at
