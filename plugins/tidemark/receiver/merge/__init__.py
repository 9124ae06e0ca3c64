"""Files of a site that overlap become merged files, and readers see those instead.

Enter by `merge.merge(app, receiver)`.

    device    one device: what is copied, what is decoded, who wins
    sources   what the sources of a task hold, and can one file hold it all
    task      the points of some devices as new TsFiles in staging; one task in a child process
    plan      which files are merged together, in which pieces; pure
    batch     leases, results, and the rows of what a batch made
    merge     plan, tasks, publish, one transaction a group

Imports `receiver.load` (check, examine), `cluster`, `app`, `engines`, `formats`, `ledger`, `stores`, `tsfiles`.
Reading gives the same points before, between and after. Each merge records in = out + overwritten + deleted. A null
never overwrites a value. What cannot be merged without changing a value or a type is refused by name and its files
stay as they are.
"""
