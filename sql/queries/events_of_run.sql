-- What happened to one run itself, newest first. Parameters: run, most.
SELECT at, kind, link, landing, detail FROM event
WHERE run_id = :run AND path IS NULL ORDER BY event_id DESC LIMIT :most
