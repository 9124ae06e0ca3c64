"""Show a receiver's cluster to a person: values, lines, a page, and reasons.

Enter by `show.show_cluster`, `show.find_route`, `page.render_page`, `replicas.show_replicas` and `why.explain_part`.

    view   nodes, groups, slot moves and their progress; values
    show   the cluster from the ledger alone; no node is asked
    page   the cluster as one HTML file
    replicas  the members of each group by their logs: roles, versions, what is waited for
    why    explain the state of a node or slot; the node itself is asked

Imports `cluster`, `proof.as_of`, `proof.explanation`, `proof.page_style`, `proof.status`, `app`, `ledger`, `tsfiles.times`.
Not here: checking and repairing, which `cluster.health` does.
"""
