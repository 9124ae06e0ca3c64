"""Every interleaving of a data group's members, workers and ledgers, by the real rules of `cluster/replicas/core`.

    explored = explore(Bounds(), Rules())        # all states that can be reached; stops at the first that must not be
    explored.states, explored.violation, explored.trace

Three members, a quorum of two, operations one after the other. A step is one effect: a message reaches a member, a process
writes to the ledger, another one takes over, a disk is lost, the ledger comes from an older copy or from the
nodes. A message that was sent may come at any later time, or never: so a delay is a step that others go before, and a
crash is a worker that takes none any more. A worker that lost the lease goes on as if it did not know.

The rules are those of the product: who is elected, who votes, what a log takes, what is committed, who is read. The order
in which a worker asks them is that of `promote.open_group`, `commit.append_change` and `commit.settle_commit`, a second time
in few words. Files are not modelled, nor connections: a member that does not answer is a message that does not come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from tests.replica_states import (
    ALL,
    ALL_RULES,
    NAMES,
    QUORUM,
    SUBSETS,
    Bounds,
    Node,
    Row,
    Rules,
    State,
    Token,
    Tokens,
    Worker,
    end_of,
    fence_of,
    judge_logs,
    judge_told,
    log_of,
    operations_of,
    position_of,
    put,
    rebuilt_row,
    tell_from_nodes,
)
from tidemark.cluster.replicas.core.election import Restart, elect_master
from tidemark.cluster.replicas.core.epochs import (
    Fence,
    Promotion,
    Verdict,
    Vote,
    judge_batch,
    judge_fence,
    judge_promotion,
)
from tidemark.cluster.replicas.core.quorum import Outcome, has_barrier_quorum, judge_forward
from tidemark.cluster.replicas.core.roles import Arbitrator, Group, Member, Position, Role

Step = tuple[str, State]


@dataclass
class Explored:
    states: int = 0
    steps: int = 0
    violation: str = ""
    trace: tuple[str, ...] = field(default=())
    whole: bool = False  # nothing was left out


class Model:
    """The steps that a state has, and what must never be of it. What must not be of a step stands in `State.wrong`."""

    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self.bounds, self.rules = bounds, rules

    def begin(self) -> State:
        workers = (Worker(),) * self.bounds.workers
        if self.bounds.fresh:
            return State((Node(),) * 3, Row(), workers)
        first = (Token("b", 1),)
        row = Row(1, 0, True, position_of(first), -1, ALL)
        if self.bounds.underway:
            row = row._replace(operation=0)
            asks = Worker("operation", True, row, first, (Token("o", 1, 0),), "www")
            late = (asks, *workers[1:])
            return State((Node((1, 0), first),) * 3, row, late, 0, begun=frozenset({(1, 0)}), operations=1)
        return State((Node((1, 0), first),) * 3, row, workers, begun=frozenset({(1, 0)}))

    def step(self, state: State) -> Iterator[Step]:
        return chain(self._happen(state), *(self._work(state, w) for w in range(len(state.workers))))

    # what happens to members and ledger

    def _happen(self, state: State) -> Iterator[Step]:
        bounds = self.bounds
        if state.losses < bounds.losses and state.lost < 0:
            for m in ALL:
                if state.nodes[m].fence is not None:
                    nodes = put(state.nodes, m, Node())
                    yield f"{NAMES[m]} loses its disk", state._replace(nodes=nodes, lost=m, losses=state.losses + 1)
        if state.copy is None and bounds.copies and state.row.settled != (0, 0):
            copy = state.row._replace(operation=-1) if self.rules.unmarked else state.row
            copy = copy._replace(active=False, epoch=copy.epoch + 100) if self.rules.inactive else copy
            yield "the ledger is copied", state._replace(copy=copy)
        if state.copy is not None and state.copies < bounds.copies and state.copy != state.row:
            after = state._replace(row=state.copy, lease=-1, copies=state.copies + 1, older=True)
            yield "the ledger is restored from the copy", after
        if state.rebuilds < bounds.rebuilds and state.row.settled != (0, 0):
            told = tell_from_nodes(state.nodes, ALL)
            if told is not None:
                row = rebuilt_row(state.nodes, told)
                after = state._replace(row=row, lease=-1, rebuilds=state.rebuilds + 1, older=False)
                yield "the ledger is rebuilt from the nodes", after

    # what workers do

    def _work(self, state: State, w: int) -> Iterator[Step]:
        worker = state.workers[w]
        if worker.phase == "idle":
            if w == 0 or state.workers[w - 1].phase != "idle":
                yield from self._open(state, w)
            return
        for m in ALL:
            if worker.marks[m] == "w":
                yield f"{w}: {worker.phase} at {NAMES[m]}", self._deliver(state, w, m)
                if worker.alive and worker.phase == "recovery" and not state.nodes[m].log:
                    yield from self._bring_some(state, w, m)
            elif worker.marks[m] == "g" and worker.alive and worker.marks[worker.row.master] == "y":
                yield f"{w}: brings {NAMES[m]} up", self._bring_up(state, w, m)
                yield from self._bring_some(state, w, m)
            elif worker.alive and state.nodes[m].filling and self._may_note_whole(state, w, m):
                nodes = put(state.nodes, m, state.nodes[m]._replace(filling=False))
                yield f"{w}: notes that {NAMES[m]} is whole", state._replace(nodes=nodes)
        if worker.alive:
            yield from self._go_on(state, w)

    def _open(self, state: State, w: int) -> Iterator[Step]:
        """Take the lease, whoever has it, and look at the group: `promote.open_group`."""
        state, row = state._replace(lease=w), state.row
        if row.active and row.operation < 0:
            master = state.nodes[row.master]
            held = fence_of(master.fence)
            if held is not None:
                label = f"{w}: asks master {NAMES[row.master]}"
                if self._is_beyond_ledger(held, row) or len(master.log) > row.settled[1]:
                    yield label, self._refuse(state, w, row)
                    return
                if held.epoch == row.epoch and len(master.log) == row.settled[1]:
                    yield label, put_worker(state, w, Worker("ready", True, row, master.log))
        for members in SUBSETS:
            yield from self._stand(state, w, members)

    def _stand(self, state: State, w: int, members: tuple[int, ...]) -> Iterator[Step]:
        """Elect by what these members tell, and give the epoch."""
        row, nodes = state.row, state.nodes
        label = f"{w}: hears {', '.join(NAMES[m] for m in members)}"
        if any(self._is_beyond_ledger(fence_of(nodes[m].fence), row) for m in members):
            yield label, self._refuse(state, w, row)
            return
        first = row.settled == (0, 0) and not row.in_step
        sound = [m for m in members if m in row.in_step and nodes[m].fence is not None and not nodes[m].filling]
        intact = tuple(m for m in members if first or m in sound)
        seen = []
        for m in ALL:
            role = Role.OFFLINE if m not in members else Role.SLAVE if m in intact else Role.UNSYNCED
            seen.append(Member(NAMES[m], role, end_of(nodes[m].log)))
        group = Group(tuple(seen), QUORUM, Arbitrator.ONLINE, Position(*row.settled))
        elected = elect_master(group, Restart.INTERSECT)
        if elected is None:
            return
        votes = [Vote(NAMES[m], end_of(nodes[m].log), m in intact) for m in members]
        if self.rules.votes and judge_promotion(group, elected.name, votes) is not Promotion.WRITE_BARRIER:
            return  # the epoch would be given in vain
        if find_doubtful(row, nodes[NAMES.index(elected.name)].log) is None:
            yield label, self._refuse(state, w, row)
            return
        in_step = row.in_step
        if self.rules.forgetful:
            in_step = tuple(m for m in in_step if m not in members or nodes[m].fence is not None)
        given = row._replace(epoch=row.epoch + 1, master=NAMES.index(elected.name), active=False, in_step=in_step)
        marks = "".join("w" if m in members else "." for m in ALL)
        worker = Worker("vote", True, given, marks=marks, intact=intact)
        yield f"{label}, elects {elected.name}", put_worker(state._replace(row=given), w, worker)

    def _deliver(self, state: State, w: int, m: int) -> State:
        worker, node = state.workers[w], state.nodes[m]
        asked = fence_of((worker.row.epoch, worker.row.master))
        assert asked is not None
        if worker.phase == "vote":
            verdict = judge_fence(fence_of(node.fence), asked)
            if verdict is not Verdict.ACCEPT:
                return self._mark(state, w, m, verdict)
            first = worker.row.settled == (0, 0) and not worker.row.in_step
            filling = self.rules.filling and (node.filling or (node.fence is None and not first))
            nodes = put(state.nodes, m, Node((worker.row.epoch, worker.row.master), node.log, filling))
            voted = worker._replace(votes=put(worker.votes, m, node.log)) if worker.alive else worker
            return self._mark(put_worker(state._replace(nodes=nodes), w, voted), w, m, verdict)
        if worker.phase == "recovery":
            return self._recover(state, w, m)
        whole = log_of(worker.base + worker.records).records
        heads = whole[len(worker.base) :]
        verdict, known = judge_batch(fence_of(node.fence), log_of(node.log), asked, heads)
        if verdict is Verdict.ACCEPT:
            grown = Node((worker.row.epoch, worker.row.master), node.log + worker.records[known:], node.filling)
            state = state._replace(nodes=put(state.nodes, m, grown))
        return self._mark(state, w, m, verdict)

    def _mark(self, state: State, w: int, m: int, verdict: Verdict) -> State:
        worker = state.workers[w]
        if not worker.alive:
            return put_worker(state, w, worker._replace(marks=put_mark(worker.marks, m, ".")))
        if verdict in (Verdict.STALE, Verdict.RIVAL) or (verdict is Verdict.CONFLICT and m == worker.row.master):
            return self._refuse(put_worker(state, w, worker._replace(marks=put_mark(worker.marks, m, "."))), w, worker.row)
        behind = verdict in (Verdict.GAP, Verdict.UNFENCED) and m != worker.row.master
        sign = "y" if verdict in (Verdict.ACCEPT, Verdict.DUPLICATE) else "g" if behind else "."
        return put_worker(state, w, worker._replace(marks=put_mark(worker.marks, m, sign)))

    def _bring_some(self, state: State, w: int, m: int) -> Iterator[Step]:
        theirs = state.nodes[state.workers[w].row.master].log
        for some in range(len(state.nodes[m].log) + 1, len(theirs)):
            yield f"{w}: brings {NAMES[m]} {some} records", self._bring_up(state, w, m, some)

    def _may_note_whole(self, state: State, w: int, m: int) -> bool:
        """As `MemberLogs._note_whole`."""
        worker = state.workers[w]
        sent = worker.phase in ("barrier", "operation", "take-back", "recovery")
        return sent and worker.marks[m] == "y" and (state.lease == w or not self.rules.held)

    def _bring_up(self, state: State, w: int, m: int, some: int | None = None) -> State:
        """What the member lacks of the master's log, as it is now: `MemberLogs._bring_up`. `some`: up to that record,
        and it is still behind."""
        worker, node = state.workers[w], state.nodes[m]
        asked = fence_of((worker.row.epoch, worker.row.master))
        assert asked is not None
        if self.rules.held and not node.log and state.lease != w:
            return put_worker(state, w, worker._replace(marks=put_mark(worker.marks, m, ".")))
        verdict = judge_fence(fence_of(node.fence), asked)
        if verdict is not Verdict.ACCEPT:
            return self._mark(state, w, m, verdict)
        fence, theirs = (worker.row.epoch, worker.row.master), state.nodes[worker.row.master].log
        theirs = theirs[:some]
        heads = log_of(theirs).records[len(node.log) :]
        grown = node.log
        if heads:
            verdict, known = judge_batch(asked, log_of(node.log), asked, heads)
            if verdict is Verdict.ACCEPT:
                grown += theirs[len(node.log) + known :]
        filling = self.rules.filling and (node.filling or node.fence is None)
        brought = state._replace(nodes=put(state.nodes, m, Node(fence, grown, filling)))
        if some is not None:
            return brought
        if self.rules.counted and worker.phase != "recovery" and len(grown) < len(worker.base + worker.records):
            return put_worker(brought, w, worker._replace(marks=put_mark(worker.marks, m, ".")))  # the master lost its own
        return self._mark(brought, w, m, verdict)

    def _recover(self, state: State, w: int, m: int) -> State:
        """As `MemberLogs.recover`: a log that parted is set aside, and comes anew."""
        after = self._bring_up(state, w, m)
        worker = after.workers[w]
        if not worker.alive:
            return after
        log = after.nodes[m].log
        if worker.marks[m] == "." or (log != worker.base and len(log) >= len(worker.base)):
            emptied = put_worker(after, w, worker._replace(marks=put_mark(worker.marks, m, "w")))
            after = self._bring_up(emptied._replace(nodes=put(after.nodes, m, Node())), w, m)
            worker = after.workers[w]
        if worker.alive:
            sign = "y" if after.nodes[m].log == worker.base else "."
            after = put_worker(after, w, worker._replace(marks=put_mark(worker.marks, m, sign)))
        return after

    def _go_on(self, state: State, w: int) -> Iterator[Step]:
        worker = state.workers[w]
        if worker.phase == "vote":
            yield from self._promote(state, w)
        elif worker.phase == "ready":
            yield from self._begin_work(state, w)
        elif worker.phase == "recovery":
            back = tuple(m for m in ALL if worker.marks[m] == "y")
            if back and self._may_swap(state, w):
                in_step = tuple(sorted({*worker.row.in_step, *back}))
                yield f"{w}: notes who is back", self._swap(state, w, worker.row._replace(in_step=in_step), ends=True)
        else:
            yield from self._close_round(state, w)

    def _promote(self, state: State, w: int) -> Iterator[Step]:
        worker = state.workers[w]
        voted = [m for m in ALL if worker.votes[m] is not None]
        votes = [Vote(NAMES[m], end_of(worker.votes[m] or ()), m in worker.intact) for m in voted]
        group = Group(tuple(Member(name, Role.UNSYNCED) for name in NAMES), QUORUM, Arbitrator.ONLINE)
        decided = judge_promotion(group, NAMES[worker.row.master], votes)
        base = worker.votes[worker.row.master]
        if not self.rules.votes and base is not None:
            decided = Promotion.WRITE_BARRIER
        if decided is not Promotion.WRITE_BARRIER or base is None:
            return  # it waits, or stands again: as another worker does
        if not self.rules.barrier:
            yield f"{w}: is master at once", self._resolve(state, w, worker._replace(base=base), tuple(voted))
            return
        asks = Worker("barrier", True, worker.row, base, (Token("b", worker.row.epoch),), "www")
        yield f"{w}: writes its barrier", put_worker(state, w, asks)

    def _close_round(self, state: State, w: int) -> Iterator[Step]:
        """Enough members have what was sent: the next step of a promotion, or the ledger's transaction."""
        worker = state.workers[w]
        master = NAMES[worker.row.master]
        answers = {NAMES[m]: worker.marks[m] == "y" for m in ALL if worker.marks[m] in "yg"}
        members = tuple(Member(name, Role.MASTER if name == master else Role.SLAVE) for name in NAMES)
        group = Group(members, QUORUM, Arbitrator.ONLINE)
        if judge_forward(group, master, answers, expired=True) is not Outcome.COMMITTED:
            return
        holders = tuple(m for m in ALL if worker.marks[m] == "y")
        base = worker.base + worker.records
        if worker.phase == "barrier":
            if not has_barrier_quorum(len(holders), group, granted=False):
                return
            begun = state.begun | {(worker.row.epoch, worker.row.master)}
            after = self._resolve(state._replace(begun=begun), w, worker._replace(base=base), holders)
            yield f"{w}: its barrier is at {'/'.join(NAMES[m] for m in holders)}", after
        elif worker.phase == "take-back":
            yield f"{w}: took back {worker.row.operation}", self._activate(state, w, base, holders)
        elif self._may_swap(state, w):
            settled = worker.row._replace(
                settled=position_of(base), operation=-1, in_step=holders, seen=worker.row.seen | {w}
            )
            after = self._swap(state._replace(acknowledged=state.acknowledged | {w}), w, settled, ends=True)
            yield f"{w}: settles, {'/'.join(NAMES[m] for m in holders)} have it", after

    def _resolve(self, state: State, w: int, worker: Worker, holders: tuple[int, ...]) -> State:
        """Settle what lies behind the settled record in the master's log."""
        doubtful = find_doubtful(worker.row, state.nodes[worker.row.master].log)
        if doubtful is None:
            return self._refuse(state, w, worker.row)
        if doubtful < 0:
            return self._activate(put_worker(state, w, worker), w, worker.base, holders)
        records = (Token("t", worker.row.epoch, doubtful),)
        return put_worker(state, w, Worker("take-back", True, worker.row, worker.base, records, "www"))

    def _activate(self, state: State, w: int, base: Tokens, holders: tuple[int, ...]) -> State:
        row = state.workers[w].row
        active = row._replace(active=True, settled=position_of(base), operation=-1, in_step=holders)
        if not self._may_swap(state, w):
            return end_worker(state, w)
        after = self._swap(state, w, active)
        if not state.acknowledged <= operations_of(base):
            return after._replace(wrong="a new master lacks an acknowledged operation")
        return put_worker(after, w, Worker("ready", True, active, base))

    def _begin_work(self, state: State, w: int) -> Iterator[Step]:
        worker = state.workers[w]
        row = worker.row
        fallen = [m for m in ALL if m not in row.in_step]
        if not self._may_swap(state, w):
            return
        if fallen and state.recoveries < self.bounds.recoveries:
            marks = "".join("w" if m in fallen else "." for m in ALL)
            after = state._replace(recoveries=state.recoveries + 1)
            yield f"{w}: recovers", put_worker(after, w, worker._replace(phase="recovery", marks=marks))
        if state.operations < self.bounds.operations:
            doing = row._replace(operation=w)
            after = self._swap(state._replace(operations=state.operations + 1), w, doing)
            asks = Worker("operation", True, doing, worker.base, (Token("o", row.epoch, w),), "www")
            yield f"{w}: notes operation {w}", put_worker(after, w, asks)

    # the ledger

    def _may_swap(self, state: State, w: int) -> bool:
        """The compare of the compare-and-swap, under the lease. Who has lost it writes no more, and so does nothing more."""
        mine, there = state.workers[w].row, state.row
        return state.lease == w and (there.epoch, there.operation) == (mine.epoch, mine.operation)

    def _swap(self, state: State, w: int, row: Row, *, ends: bool = False) -> State:
        back = state.lost in row.in_step and position_of(state.nodes[state.lost].log) >= row.settled
        lost = -1 if back else state.lost
        after = state._replace(row=row, lost=lost)
        return end_worker(after, w) if ends else after

    def _is_beyond_ledger(self, held: Fence | None, row: Row) -> bool:
        return held is not None and held.epoch > row.epoch

    def _refuse(self, state: State, w: int, row: Row) -> State:
        """`ahead_error`: nothing is written, the worker ends. Nobody may say so of a ledger that was never older."""
        after = end_worker(state, w)
        if state.lease == w and not (state.copies or state.rebuilds or state.losses):
            return after._replace(wrong="a ledger that was never restored is called older than its nodes")
        return after

    # what must never be

    def judge(self, state: State) -> str:
        if len({epoch for epoch, _ in state.begun}) < len(state.begun):
            return "an epoch has two masters"
        row = state.row
        if row.active and row.operation < 0 and not state.older:
            if not state.acknowledged <= row.seen:
                return "the ledger lost an acknowledged operation"
            log = state.nodes[row.master].log
            if state.lost != row.master and not state.acknowledged <= operations_of(log):
                return "an active master lacks an acknowledged operation"
            if state.lost != row.master and operations_of(log[: row.settled[1]]) != row.seen:
                return "the ledger's catalog is not what the log tells"
            if trouble := self._judge_readers(state):
                return trouble
        # A worker of an older ledger that is still on its way has the epoch of the restored one, and not its operations.
        alike = "" if state.copies else judge_logs(state.nodes)
        return alike or judge_told(state.nodes, state.acknowledged, self.rules.silent)

    def _judge_readers(self, state: State) -> str:
        """Who may be read has what is acknowledged, whoever is away."""
        row, nodes = state.row, state.nodes
        for m in ALL:
            whole = end_of(nodes[m].log).position >= Position(*row.settled)
            if m not in row.in_step or nodes[m].fence is None or not whole:
                continue
            if not state.acknowledged <= operations_of(nodes[m].log):
                return f"{NAMES[m]} is read and lacks an acknowledged operation"
        return ""


def find_doubtful(row: Row, log: Tokens) -> int | None:
    """Return the operation that lies behind what is settled, and counts; -1 for none, None for one that the ledger does not
    know: `promote.find_doubtful`."""
    doubtful = -1
    for token in log[row.settled[1] :]:
        if token.kind == "b":
            continue
        if token.of != row.operation:
            return None
        doubtful = -1 if token.kind == "t" else token.of
    return doubtful


def put_mark(marks: str, at: int, mark: str) -> str:
    return marks[:at] + mark + marks[at + 1 :]


def put_worker(state: State, w: int, worker: Worker) -> State:
    return state._replace(workers=put(state.workers, w, worker))


def end_worker(state: State, w: int) -> State:
    """The worker takes no more steps. What it has sent may still come, unless the member would refuse it anyway."""
    worker = state.workers[w]
    stays = [
        sign == "w" and worker.phase != "recovery" and (node.fence is None or node.fence[0] <= worker.row.epoch)
        for sign, node in zip(worker.marks, state.nodes, strict=True)
    ]
    if any(stays):
        row = Row(worker.row.epoch, worker.row.master)
        marks = "".join("w" if stay else "." for stay in stays)
        ended = Worker(worker.phase, False, row, worker.base, worker.records, marks)
    else:
        ended = Worker("ended", False)
    after = put_worker(state, w, ended)
    return after._replace(lease=-1) if state.lease == w else after


def explore(bounds: Bounds, rules: Rules = ALL_RULES) -> Explored:
    """Go breadth first through all states, until one must not be. The trace is a shortest one."""
    model = Model(bounds, rules)
    first = model.begin()
    came: dict[State, tuple[State, str] | None] = {first: None}
    wave, found = [first], Explored()
    while wave and len(came) < bounds.states:
        after_wave = []
        for state in wave:
            for label, after in model.step(state):
                found.steps += 1
                if after in came:
                    continue
                came[after] = (state, label)
                if wrong := after.wrong or model.judge(after):
                    return Explored(len(came), found.steps, wrong, trace_of(came, after))
                after_wave.append(after)
        wave = after_wave
    return Explored(len(came), found.steps, whole=not wave)


def trace_of(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (before := came[state]) is not None:
        steps.append(before[1])
        state = before[0]
    return tuple(reversed(steps))
