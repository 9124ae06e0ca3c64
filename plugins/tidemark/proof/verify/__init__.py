"""Compare the site's bytes, the landed files and the catalog by digest; with `deep` by points; repair on demand.

Enter by `verify.verify`.

    differences  the differences found, one line each; the site's own bytes compared with what was acknowledged
    nodes        copies at nodes, byte by byte
    repair       what `verify --repair` does about a difference; idempotent, recorded with the operator's name
    deep         every point of a site's sealed files, newest wins, compared with what readers see
    verify       all of it; lost and changed landings; sealed files that were not sent

Imports `proof.coverage`, `proof.as_of`, `receiver` (view, merge, proved_files, session), `cluster`, `sync` (selection),
`ledger`, `stores`, `tsfiles`. Stored digests are not trusted: every byte is read where it lies. Files that a quarantine
or an owner keeps out are listed as held, not as differences.
"""
