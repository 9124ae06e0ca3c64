"""The near end of the agent: a store whose far end has python3 (3.6 or newer) and a shell. It can do what a local store can.

Others call `store.PythonStore`; `stores.open_sftp` makes it.

    bundle   make the agent's text from the modules of `stores.agent`; `start_command` starts it, or lists the tools
    session  `start_far_end`, `FarSession`, `FarPool`: request an operation over a pipe, receive frames and a result
    store    the `Store` over a session

Imports `stores.agent`, `stores.ssh` and the modules of `stores`. One round trip finds the tier: where python3 is missing,
the command that starts the agent lists the POSIX tools. The agent ends with its connection and takes no more memory than
the settings allow. Only `stores` and `transfer` may import this folder.
"""
