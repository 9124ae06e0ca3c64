-- One landing by its id, as its sender and its receivers in this ledger know it. Parameters: landing.
SELECT 'receiver' AS side, receiver AS place, site_id, sequence, previous, state, reason, files, bytes, found AS at, receipt
FROM landing WHERE landing = :landing
UNION ALL
SELECT 'sender', s.link, l.site_id, s.sequence, s.previous, s.state, NULL, s.files, s.bytes, COALESCE(s.landed, s.created), s.receipt
FROM sent_landing s JOIN link l ON l.link = s.link WHERE s.landing = :landing
ORDER BY side
