"""Device × day: what the site has against what readers see.

Enter by `site.cover_site`; the verb is `proof.prove.coverage`.

    presence   is a generation in the catalog; if not, why not; pure
    cells      claims of files as stretches of days, the red list; pure
    gather     from the ledger's rows to the values that are decided on
    page       the coverage as one HTML file, without a network or a script
    site       one site at a receiver on this machine; what lies in landings; which sites a receiver knows

Imports `proof.as_of`, `proof.explanation`, `proof.status`, `proof.page_style`, `receiver.proved_files`, `formats`,
`ledger`, `tsfiles`. *Present*: readers read it, or a merged file whose lineage reaches it and whose account agrees.
The site's inventory comes from its manifests. Coverage does not read the site's bytes: `proof.verify` does.
"""
