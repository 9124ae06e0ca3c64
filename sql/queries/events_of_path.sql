-- What happened to one path, device or series, newest first. Parameters: path, most.
SELECT at, kind, link, run_id, landing, detail FROM event WHERE path = :path ORDER BY event_id DESC LIMIT :most
