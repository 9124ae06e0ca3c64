"""The rules of a data group's replicas: pure decisions over frozen values. Nothing here acts, and nothing remembers.

    roles          positions in the log, roles, a group as one round saw it
    quorum         majorities, acknowledgements, the outcome of a forward
    continuity     a log is a chain
    record         a record as bytes: 64 bytes of head, a body, two CRCs
    segment        a file of a log as bytes: records, and marks that tell its end and its fence
    election       who becomes master
    status         the state processing flow: from a group to new roles and actions
    epochs         fence, promotion, barrier; may this record be appended
    digest_tree    equal roots mean equal files; two trees are compared where they differ alone
    recovery_plan  which phase of a recovery comes next, which recoveries may begin
    placement      a member that stays away is replaced; masters go home to the first of their list

Enter by `election.elect_master`, `epochs.judge_promotion`, `epochs.judge_batch`, `quorum.judge_forward` and
`recovery_plan.advance`; `status.evaluate` tells what comes of a group. Imports `errors` and nothing else of ours. It has no
clock: times and counts are arguments. The same group, round and answers give the same decision everywhere. Not guaranteed:
that what it is told is true. Who asks nodes, writes logs and records decisions stands above it. docs/replication.md maps
seeds 003 and 004 to it.
"""
