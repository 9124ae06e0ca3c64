"""The near end of the agent: a store whose far end has python3 and a shell, so it can do what a local store can.

Enter by `store.PythonStore`; `stores.open` makes it.

    bundle      the agent's text, made of `stores.agent`'s own modules; `command` starts it, or names the tools
    session     `start_far_end`, `FarSession`, `FarPool`: ask an operation over a pipe, get frames and a result
    store       the `Store` over a session

Imports `stores.agent`, `stores.ssh` and the modules of `stores`. One round trip finds the tier: the command that
starts the agent also says which POSIX tools there are where python3 is missing. The far program neither outlives its
line nor takes more memory than the settings allow. Only `stores` and `transfer` may import this folder.
"""
