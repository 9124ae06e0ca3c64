"""Changes over HTTP: the original's protocol, with a codec of Arrow blocks beside it.

    run       listen and answer
    app       the calls, sessions, tokens, errors, metrics
    sessions  clients between their first call and their end
    tokens    who may read what
    points    storage points of tasks, for clients that are no members
    feed      a client's way through a store
    events    transactions as the original's messages
    frames    transactions as Arrow blocks
    requests  what clients ask. Pure
    schema    the messages, field by field. Pure
    client    clients, in Python: a session, a member of a task

The server knows no settings: it is given stores by name. Imports `starlette`, `uvicorn` (`app`, `run`) and `protobuf`.
"""
