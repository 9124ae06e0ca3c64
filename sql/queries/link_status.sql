-- One row a link: its newest run, its newest landing, its lease, its troubles at a receiver of this ledger.
SELECT l.link, l.site_id, l.receiver, l.last_success, l.guard, l.guard_run, l.source_tier, l.target_tier,
       r.run_id, r.state AS run_state, r.step, r.started, r.ended, r.error_kind, r.error, r.hint, r.pending,
       s.landing, s.state AS landing_state, s.landed, s.receipt,
       e.holder, e.host, e.boot_id, e.pid, e.process_start, e.expires,
       (SELECT COUNT(*) FROM skipped_file k WHERE k.link = l.link) AS skipped,
       (SELECT COUNT(*) FROM sent_landing n WHERE n.link = l.link AND n.state = 'landed' AND NOT EXISTS
            (SELECT 1 FROM landing t WHERE t.receiver = l.receiver AND t.site_id = l.site_id AND t.landing = n.landing
             AND t.state = 'loaded')) AS unanswered
FROM link l
LEFT JOIN run r ON r.run_id = (SELECT n.run_id FROM run n WHERE n.link = l.link
     ORDER BY n.started DESC, n.run_id DESC LIMIT 1)
LEFT JOIN sent_landing s ON s.link = l.link
     AND s.sequence = (SELECT MAX(n.sequence) FROM sent_landing n WHERE n.link = l.link AND n.state <> 'closing')
LEFT JOIN lease e ON e.name = 'link:' || l.link AND e.holder <> ''
ORDER BY l.link
