-- How many copies data nodes hold, and what the newest proof of each found. Parameters: receiver.
SELECT count(*) AS copies,
       COALESCE(SUM(CASE WHEN k.sha256 = c.sha256 THEN 1 ELSE 0 END), 0) AS proved,
       COALESCE(SUM(CASE WHEN k.sha256 <> c.sha256 THEN 1 ELSE 0 END), 0) AS differ,
       MIN(k.checked) AS oldest
FROM node_copy c
LEFT JOIN file_check k ON k.receiver = c.receiver || '/' || c.node AND k.location = c.location AND k.checked >= c.at
WHERE c.receiver = :receiver AND c.state = 'held'
