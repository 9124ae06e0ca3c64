-- What a link's receiver answered that it keeps out, as the sender knows it. Parameters: link. `kind`: see standing_troubles.
SELECT CASE WHEN reason LIKE 'refused%' THEN 'refused' ELSE 'quarantined' END AS what, COALESCE(landing, '') AS landing, path,
       reason, CASE WHEN reason LIKE 'refused%' THEN 23 ELSE 7 END AS kind
FROM file
WHERE link = :link AND state = 'acked' AND reason IS NOT NULL AND (reason LIKE 'refused%' OR reason LIKE 'quarantined%')
ORDER BY path
