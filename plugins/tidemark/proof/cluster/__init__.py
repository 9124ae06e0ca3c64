"""A receiver's cluster as a person sees it: values, lines, a page, and why.

Enter by `show.show_cluster`, `show.find_route`, `page.page` and `why.explain_part`.

    view   nodes, groups, what moves and how far it is; values
    show   the cluster from the ledger alone; no node is asked
    page   the cluster as one HTML file
    why    why is this node or slot as it is; the node itself is asked

Imports `cluster`, `proof.as_of`, `proof.explanation`, `proof.page_style`, `proof.status`, `app`, `ledger`,
`tsfiles.times`. Not here: checking and repairing, which `cluster.health` does.
"""
