"""What is where and why: status, coverage, verify, why. Only `verify --repair` changes anything.

Enter by `prove`: `status`, `coverage`, `verify`, `why`. `cluster/` has the same for nodes.

    explanation   the shape of an answer to `why`; files that are gone at their site and kept
    as_of         until when what a site has is known; days
    page_style    the style of HTML pages
    status        one line a link; pure
    cluster/      a cluster as values, lines and a page, and why it is so
    coverage/     device × day: what the site has against what readers see
    verify/       bytes and points compared, repaired on demand
    why/          why is this file, run, landing, link, site or device as it is
    prove         the four verbs

Imports `sync` (notes, plan of a selection, manifest), `receiver` (view, proved_files, merge), `cluster`, `app`,
`formats`, `ledger`, `settings`, `stores`, `tsfiles`. `status` and `coverage` ask no site, so they answer when a site
does not. "Not verified" is a state of its own, never "ok". A proof has a date: when the site's last whole listing
began (docs/decisions/0022).
"""
