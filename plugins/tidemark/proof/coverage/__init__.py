"""Coverage, device × day: what the site has compared with what readers see.

Enter by `site.cover_site`; the verb is `proof.prove.coverage`.

    cells      is a generation in the catalog, if not, why not; files' claims as stretches of days, the red list; pure
    gather     from ledger rows to the values that rules use
    page       the coverage as one HTML file, without network or script
    site       one site at a receiver on this machine; files in landings; the sites that a receiver knows

Imports `proof.as_of`, `proof.explanation`, `proof.status`, `proof.page_style`, `receiver.proved_files`, `formats`, `ledger`,
`tsfiles`. *Present*: readers read it, or a merged file whose lineage reaches it and whose account agrees. The site's
inventory comes from its manifests. Coverage does not read the site's bytes: `proof.verify` does.
"""
