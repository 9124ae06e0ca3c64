"""Files that Tidemark writes for other programs, or for a Tidemark on another machine, as values and as bytes.

Enter by `landing` for the files of a landing, by `layout` for places.

    json_stream   JSON of a manifest or a receipt, one entry at a time, in bounded memory
    layout        names and places below a receiver's root
    landing       a landing's manifest and receipt: `encode_document`, `decode_manifest`, `decode_receipt`
    records       an operator's decision and a settled merge, written so that a lost ledger can be rebuilt
    answered      the landings at a receiver; manifests and receipts that the receiver kept for itself

Imports `stores.protocol`, `untrusted_files` and `errors`. Decides nothing and writes nothing into the ledger. A file from
any writer must be whole, of a known format and name nothing outside its landing; otherwise CorruptionError says what is
wrong. A newer format is refused by name; unknown keys are ignored. The fields are described in `docs/formats/`.
"""
