-- When a site was listed whole, and when this end knew of it. Parameters: receiver, site (UUID), link ('' where none is here).
SELECT listed, CAST(NULL AS DOUBLE PRECISION) AS known FROM link WHERE link = :link AND listed IS NOT NULL
UNION ALL
SELECT listed, loaded FROM landing
WHERE receiver = :receiver AND site_id = :site AND state = 'loaded' AND listed IS NOT NULL
