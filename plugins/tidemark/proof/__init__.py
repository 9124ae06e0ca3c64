"""Answer what is where and why: status, runs, coverage, verify, why. Only `verify --repair` changes anything.

Enter by `overview`: `status`, `runs`; by `prove`: `coverage`, `why`; and by `verify.verify`. For nodes: `cluster/`.

    explanation   the shape of an answer to `why`; files that vanished at their site and are kept
    as_of         the time up to which a site's files are known; days
    page_style    the style of HTML pages
    status        one line per link; pure
    runs          the newest runs with duration, rate and outcome; pure
    cluster/      a cluster as values, lines and a page, and reasons for its state
    coverage/     device × day: what the site has compared with what readers see
    verify/       compare bytes and points, repair on demand
    why/          explain the state of a file, run, landing, link, site or device
    overview      the verbs status, runs
    prove         the verbs coverage, why

Imports `sync` (notes, plan of a selection, manifest), `receiver` (view, proved_files, merge), `cluster`, `app`, `formats`,
`ledger`, `settings`, `stores`, `tsfiles`. `status` and `coverage` ask no site, so they work while a site is away. "Not
verified" is a state of its own, never "ok". A proof has a date: the start of the site's last whole listing
(docs/decisions/0022).
"""
