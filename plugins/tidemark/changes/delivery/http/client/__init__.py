"""Clients of `changes serve`, in Python.

    spans       spans planned and fetched, for who is no member: Spark
    held_point  the point of a task, held by one who fetches spans
    member      a member of a task on another machine: `subscribe(url=…)`, several readers
    fetched     blocks of a reader, fetched ahead
    readers     the calls of readers, and which reader to choose
    session     one session at a reader: the three calls, and replies as transactions

Imports what a member at the store has, and `http.requests`, `frames` and `schema`; nothing of the server.
"""
