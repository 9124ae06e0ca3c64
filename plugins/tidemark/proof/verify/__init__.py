"""The site's bytes, what landed and the catalog, compared by digest; with `deep` by points; repaired on demand.

Enter by `verify.verify`; the verb is `proof.prove.verify`.

    differences  what was found, one line a difference; the site's own bytes against what was acknowledged
    points       points against points, and the site's own points device by device
    nodes        copies at nodes, byte by byte
    repair       what `verify --repair` does about a difference; idempotent, recorded with who asked for it
    deep         every point of a site's sealed files, newest wins, against what readers see
    verify       all of it; landings that are gone or changed; what is sealed at a site and was not sent

Imports `proof.coverage`, `proof.as_of`, `receiver` (view, merge, proved_files), `cluster`, `sync` (selection),
`ledger`, `stores`, `tsfiles`. Nothing remembered is trusted: every byte is read at the site where it lies. What a
quarantine or an owner keeps out is named as held, it is no difference.
"""
