"""Files that Tidemark writes for other programs, or for a Tidemark on another machine, as values and as bytes.

Enter by `landing` for what travels, by `layout` for places.

    json_stream   JSON of a manifest or a receipt, an entry at a time, in bounded memory
    layout        where things lie below a receiver's root: names and places only
    landing       the manifest that ends a landing and the receipt that answers it: `encode`, `decode_manifest`,
                  `decode_receipt`
    records       an operator's decision and a settled merge, written so that a lost ledger can be rebuilt
    answered      which landings lie at a receiver; manifests and receipts that the receiver kept for itself

Imports `stores.protocol`, `untrusted_files` and `errors`. Decides nothing and writes nothing into the ledger. What
is read is whole, of a known format and names nothing outside its landing, whoever wrote it; else a CorruptionError
says what is wrong. A newer format is refused by name; unknown keys are ignored. The fields stand in `docs/formats/`.
"""
