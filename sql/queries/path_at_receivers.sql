-- What every receiver knows of one path of a site beside its catalog: inventory and the landing that last spoke of it.
-- Parameters: site (UUID), path.
SELECT v.receiver, v.size, v.live, v.generation, v.landing, n.state AS landing_state, n.sequence, n.reason AS landing_reason
FROM inventory v LEFT JOIN landing n ON n.receiver = v.receiver AND n.site_id = v.site_id AND n.landing = v.landing
WHERE v.site_id = :site AND v.path = :path
ORDER BY v.receiver
