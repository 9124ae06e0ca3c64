"""Landings into the catalog: check, own, place, record in one transaction a landing, answer, clean.

Enter by `load.load(app, receiver)`. `retry.replay_refused` and `retry.recheck_waiting` load files that waited.

    check       is a file what its manifest says, and can it be read; one task in a child process
    place       where a file goes at the receiver, and how; durable before the ledger speaks of it
    result      what a load did, every trouble by name
    admit       what becomes of each file: loaded, refused or held; who owns a device; pure
    landings    landings found, manifests read, the sequence, answers kept, clean-up
    removal/    vanished files: when they leave the catalog. Here is the rule that guards deletions at the centre
    schema      the sites' schema logs, and the series that they and the files declare
    work        a load under way; is a failure the landing's or ours
    record      what was decided, written to the ledger in the caller's transaction
    examine     files of a landing are copied where they are not ours, checked, and decided on
    retry       refused files whose devices are theirs now, files that the operator releases
    load        all of it, site by site

Imports `receiver.proved_files`, `cluster`, `app`, `engines`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`.
The order, wherever a load dies: bytes durable in place, one transaction, the receipt, the clean-up. A load that died
is continued by the next one. What is wrong with a file or a landing is named, and the rest goes on.
"""
