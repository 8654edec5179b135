"""The replica set of a build: server processes in one or two tiers, their output, metrics and scaling.

A `TierSupervisor` keeps the replicas of one tier at the wanted number. There is one rule: start the missing replicas,
and stop surplus ones only once those serve. A replica that died is missing, one that must be replaced is surplus, and
an adopted one counts from the start. One without the deployment's socket is not adopted. Replicas that die are replaced
with back-off.

After an upgrade of the platform the adopted replicas run an older server. They stay until `roll_forward` replaces them
one by one, and so does each whose successor does not start.

Every two seconds the `ProcessReplicaSet` measures its replicas and reads the length of the run queue, of idle servers
every twenty. It scales by these values, enforces the memory limit, and reports them as the deployment's metrics.
"""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from portside.dataplane.compute.databases import admit_any
from portside.dataplane.compute.interface import STARTING, OnServing, ServerFiles
from portside.dataplane.compute.replica import Replica, ReplicaPlan, run_together
from portside.dataplane.compute.resource_usage import KILL_ABOVE, READER, GroupUsage, ProcessUsage, describe_limits
from portside.dataplane.compute.scaling import Load, ReplicaBounds, Scaler, ServerTier, find_tier_bounds
from portside.dataplane.compute.server_metrics import (
    ASK_IDLE_EVERY_S,
    QueueMetrics,
    ServerMetrics,
    join_problems,
    read_metrics,
)
from portside.dataplane.compute.server_output import OutputFollower, parse_line
from portside.dataplane.compute.sockets import StableSocket
from portside.dataplane.compute.start_queue import NO_QUEUE, Slot
from portside.dataplane.failures import DeployFailed, NoConnectionsLeft, describe_without_output
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import shorten_paths
from portside.dataplane.processes import ProcessIdentity
from portside.dataplane.state import DeploymentFolder, ReplicaRecord
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import TaskSet, cancel_and_wait
from portside.listener_api import DesiredDeployment, DesiredRevision, MetricsReport

_MEASURE_EVERY_S = 2.0
# Servers without runs that use less than this are asked for their metrics less often: a run uses more.
_IDLE_CORES = 0.05
_MB = 2**20
# After its own grace period a server still hands its runs back; it is not killed during that.
HAND_BACK_S = 5.0
# How long the reason of a death is shown, even if all replicas serve again.
_SHOW_DEATH_S = 60.0
_CHANGED_VARIABLES = "the platform's variables have changed; a new server replaces this one"


@dataclass
class ReplicaContext:
    """What all replicas of a revision are started with.

    `admit` raises NoConnectionsLeft for a number of replicas. A start holds a `slot` until the server answers.
    """

    plan: ReplicaPlan
    stable: StableSocket
    folder: DeploymentFolder
    log: RevisionLog
    grace_s: float
    admit: Callable[[int], Awaitable[None]] = admit_any
    files: ServerFiles | None = None
    slot: Slot = NO_QUEUE
    # Replicas that are being admitted, which the folder does not name yet.
    admitting: int = 0


class TierSupervisor:
    """Keeps `wanted` replicas of one tier."""

    def __init__(self, context: ReplicaContext, tier: ServerTier, replica_count: int) -> None:
        self._context = context
        self.tier = tier
        self._wanted = replica_count
        self.replicas: list[Replica] = []
        self._starting: list[Replica] = []
        self._to_replace: set[Replica] = set()
        self._watches: dict[Replica, asyncio.Task[None]] = {}

        self._draining: dict[asyncio.Task[None], Replica] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.is_serving = asyncio.Event()
        self._backoff = Backoff()
        self._restart_at = 0.0
        self._last_problem: tuple[float, str] | None = None

        # Set at each step of a roll forward: a replica was removed, or one did not start.
        self._stepped = asyncio.Event()
        # The newest alone: a server that cannot start fails again and again.
        self._start_failures: deque[str] = deque(maxlen=1)
        self.restarts = 0

    @property
    def problem(self) -> str | None:
        """Why a replica is missing, or was missing a moment ago."""
        if self._last_problem is None:
            return None

        moment, reason = self._last_problem
        is_short = len(self.replicas) < self._wanted
        return reason if is_short or time.monotonic() - moment < _SHOW_DEATH_S else None

    @property
    def is_steady(self) -> bool:
        """Whether all wanted replicas serve, and no other one is left."""
        return len(self.replicas) == self._wanted and not (self._starting or self._draining)

    def scale_to(self, number: int) -> None:
        """Change the wanted number of replicas."""
        if number != self._wanted:
            verb = "up" if number > self._wanted else "down"
            self._context.log.add(f"Scaling tier {self.tier} {verb} from {self._wanted} to {number} replicas")
            self._wanted = number
            self._changed.set()

    def replace(self, replica: Replica, reason: str) -> None:
        """Start another replica, then stop this one."""
        if replica not in self._to_replace:
            self._to_replace.add(replica)
            self._report_problem(reason)
            self._changed.set()

    async def roll_forward(self) -> str | None:
        """Replace the replicas of an older server one by one; return why one stays, after which the rest stay too."""
        for replica in [replica for replica in self.replicas if replica.is_older]:
            self._start_failures.clear()

            if replica in self.replicas:
                self._context.log.add("A server of this version of the platform replaces an older one")
                self._to_replace.add(replica)
                self._changed.set()

            while replica in self.replicas and not self._start_failures:
                self._stepped.clear()
                await self._stepped.wait()

            if self._start_failures:
                self._to_replace.discard(replica)
                if self._context.files is not None:
                    await self._context.files.restore_previous()

                return self._start_failures[0]

        return None

    async def start_missing(self) -> None:
        """Start the missing replicas and wait until each answers GET /ok. Raises DeployFailed after reaping them."""
        refusal = await self._start_admitted()
        if refusal is not None:
            await self._reap_all(self._starting, 0)
            raise refusal

    async def serve_started(self) -> None:
        """Let the replicas of `start_missing` serve the public socket. Raises DeployFailed after reaping them."""
        try:
            await run_together([replica.hand_over() for replica in self._starting])
        except BaseException:
            await self._reap_all(self._starting, 0)
            raise

        replicas = self._starting
        self._starting = []

        for replica in replicas:
            self._add(replica)
            # The variables may have changed during its start.
            if replica.record.fingerprint != self._context.plan.fingerprint:
                self.replace(replica, _CHANGED_VARIABLES)

        self.is_serving.set()

    async def adopt(self) -> None:
        """Adopt the serving replicas that an earlier listener started with the same plan."""
        plan = self._context.plan
        records = [
            record
            for record in self._context.folder.state.replicas
            if record.revision_id == plan.revision_id and record.tier == self.tier and self._has_socket(record)
        ]

        # All are probed before any is added, so that a failed adoption can be repeated.
        replicas = [await Replica.adopt(plan, record) for record in records]
        for replica in replicas:
            if replica is not None:
                self._add(replica)
                if self._context.plan is not plan:
                    self.replace(replica, _CHANGED_VARIABLES)

    def _has_socket(self, record: ReplicaRecord) -> bool:
        """Whether a replica of an earlier listener accepts on the socket that this one has, if on any.

        Nobody would accept the connections that come to this listener's socket if the replica had another one.
        """
        stable = self._context.stable
        is_same = stable.is_inherited and record.public_inode in {0, stable.inode}
        return is_same or self.tier is ServerTier.QUEUE

    def supervise(self) -> None:
        """Keep the wanted number of replicas from now on."""
        supervision = Supervision(
            f"replicas of tier {self.tier}",
            backoff=self._backoff,
            expected=(DeployFailed,),
            on_failure=self._fail_to_start,
        )

        self._supervisor = asyncio.create_task(supervision.run(self._keep_number))

    async def stop_accepting(self) -> None:
        """Accept no new requests; requests and runs in flight continue."""
        await self._stop_supervising()
        await asyncio.gather(*(replica.stop_accepting() for replica in self.replicas))

    async def drain(self, grace_s: float) -> None:
        """After `stop_accepting`: wait up to the grace period for all replicas to finish, then reap them."""
        await self._stop_supervising()
        await asyncio.gather(self._reap_all(self.replicas, grace_s), self._reap_all(self._starting, 0))

        if self._draining:
            _done, late = await asyncio.wait(self._draining, timeout=grace_s)
            await cancel_and_wait(*late)

    def interrupt(self) -> None:
        """Ask the replicas to hand their runs back and exit, also those that drain already."""
        for replica in (*self.replicas, *self._starting, *self._draining.values()):
            replica.process.signal(signal.SIGINT)

    async def _keep_number(self) -> None:
        while True:
            self._changed.clear()
            refusal = await self._start_admitted()
            await self.serve_started()
            self._drain_surplus()

            if refusal is not None:
                # The others serve meanwhile. The supervision tries again later.
                raise refusal

            await self._changed.wait()
            await asyncio.sleep(max(0.0, self._restart_at - time.monotonic()))

    def _drain_surplus(self) -> None:
        surplus = len(self.replicas) - self._wanted
        # Those that must be replaced first, then the youngest.
        order = sorted(self.replicas, key=lambda replica: (replica not in self._to_replace, -replica.started_at))
        for replica in order[: max(0, surplus)]:
            self._remove(replica)
            task = asyncio.create_task(self._drain(replica))
            self._draining[task] = replica
            task.add_done_callback(self._draining.pop)

    async def _drain(self, replica: Replica) -> None:
        try:
            await replica.stop_accepting()
        finally:
            await self._reap(replica, self._context.grace_s + HAND_BACK_S)

    async def _start_admitted(self) -> NoConnectionsLeft | None:
        """Start the missing replicas that Postgres has connections for; return why others were not started."""
        staying = [replica for replica in self.replicas if replica not in self._to_replace]
        missing_count = self._wanted - len(staying)
        refusals: list[NoConnectionsLeft] = []
        try:
            await run_together([self._start_one(refusals) for _ in range(missing_count)])
        except BaseException:
            await self._reap_all(self._starting, 0)
            raise

        return refusals[0] if refusals else None

    async def _start_one(self, refusals: list[NoConnectionsLeft]) -> None:
        context = self._context
        async with context.slot():
            context.admitting += 1
            try:
                await context.admit(len(context.folder.state.replicas) + context.admitting)
                if context.files is not None:
                    await context.files.update()

                replica = await Replica.start(context.plan, context.stable, self.tier, context.folder.path)
                self._starting.append(replica)
                context.folder.add_replica(replica.record)
            except NoConnectionsLeft as exc:
                refusals.append(exc)
                return
            finally:
                context.admitting -= 1

            await replica.wait_until_ok()

    def _add(self, replica: Replica) -> None:
        self.replicas.append(replica)
        self._watches[replica] = asyncio.create_task(self._watch(replica))

    async def _watch(self, replica: Replica) -> None:
        """Wait for a replica to die; a replica that is meant to end is no longer watched."""
        supervision = Supervision(f"watch of a replica of tier {self.tier}")
        how = await supervision.run(replica.wait)
        del self._watches[replica]
        self._remove(replica)

        # Wake the supervisor before anything that may fail, so that it starts another replica in any case.
        delay_s = self._backoff.next(time.monotonic() - replica.started_at)
        self._restart_at = time.monotonic() + delay_s
        self._count_failure(DeployFailed(f"the server {how}"), delay_s)
        self._changed.set()
        await supervision.run(partial(self._reap, replica, 0))

    def _fail_to_start(self, failure: Exception, delay_s: float) -> None:
        self._count_failure(failure, delay_s)
        self._start_failures.append(str(failure))
        self._stepped.set()

    def _count_failure(self, failure: Exception, delay_s: float) -> None:
        self.restarts += not isinstance(failure, NoConnectionsLeft)
        outlook = f"starting another in {delay_s:g} s"
        self._report_problem(f"{failure}\n{outlook}", f"{describe_without_output(failure)}; {outlook}")

    def _report_problem(self, reason: str, logged: str | None = None) -> None:
        self._last_problem = time.monotonic(), reason
        self._context.log.add(logged or reason, "ERROR")

    def _remove(self, replica: Replica) -> None:
        self.replicas.remove(replica)
        self._to_replace.discard(replica)
        self._stepped.set()
        self._stop_watching(replica)

    def _stop_watching(self, replica: Replica) -> None:
        watch = self._watches.pop(replica, None)
        if watch is not None:
            watch.cancel()

    async def _reap_all(self, replicas: list[Replica], grace_s: float) -> None:
        ending = list(replicas)
        replicas.clear()

        for replica in ending:
            self._stop_watching(replica)

        await asyncio.gather(*(self._reap(replica, grace_s) for replica in ending))

    async def _reap(self, replica: Replica, grace_s: float) -> None:
        try:
            await replica.reap(grace_s)
        finally:
            self._context.folder.remove_replica(replica.process)

    async def _stop_supervising(self) -> None:
        await cancel_and_wait(self._supervisor)
        self._supervisor = None

        # A replica that ends from here on was asked to, so its end is not a death.
        for watch in self._watches.values():
            watch.cancel()

        self._watches.clear()


class ProcessReplicaSet:
    """Runs one release of a build from its first start to its end."""

    def __init__(
        self,
        context: ReplicaContext,
        revision: DesiredRevision,
        bounds: dict[ServerTier, ReplicaBounds],
        scale_down_after_s: float,
    ) -> None:
        self._context = context
        self._revision = revision
        self._scale_down_after_s = scale_down_after_s
        secrets = [secret.value for secret in revision.secrets]
        self._output = OutputFollower(context.plan.output, self._log_line, secrets)
        self._tiers: dict[ServerTier, TierSupervisor] = {}
        self._retired_tiers: list[TierSupervisor] = []

        self._wanted_tiers = bounds.keys()
        self._changing_tiers: asyncio.Task[None] | None = None
        self._scalers: dict[ServerTier, Scaler] = {}
        self._tasks = TaskSet()
        self._usage = ProcessUsage()
        self._cores: dict[ServerTier, float] = {}
        self._metrics: MetricsReport | None = None

        # What the servers of each tier answered last, and when they were asked.
        self._answers: list[ServerMetrics | None] = []
        self._asked_at = 0.0

        # The request to roll forward that was begun last, the one that ended last, and why that did not succeed.
        self._begun_roll: int | None = None
        self._ended_roll: int | None = None
        self._roll_failure: str | None = None
        self._add_tiers(bounds)

    @property
    def revision_id(self) -> UUID:
        """The revision of the release."""
        return self._revision.id

    @property
    def idle_s(self) -> float | None:
        """For how long the replicas that were asked last have had nothing to do."""
        answers = [answer for answer in self._answers if answer is not None]
        return min((answer.idle_s for answer in answers if answer.idle_s is not None), default=None)

    async def start(self) -> None:
        """Start the least number of replicas; none serves before all of them could. Raises DeployFailed."""
        context = self._context
        context.log.add(describe_limits(context.plan.cpus, context.plan.memory))

        tiers = list(self._tiers.values())
        try:
            await run_together([tier.start_missing() for tier in tiers])
            await run_together([tier.serve_started() for tier in tiers])
        except BaseException as exc:
            if isinstance(exc, DeployFailed):
                # First everything that the server wrote, then the reason without a repetition of that.
                while self._output.poll():
                    pass
                context.log.add(describe_without_output(exc), "ERROR")

            await self.stop(0)
            raise

    def supervise(self, on_serving: OnServing | None = None) -> None:
        """Replace replicas that die, and scale. Replicas of this release from an earlier listener are adopted."""
        self._tasks.spawn(self._supervise(on_serving))

    def update(self, deployment: DesiredDeployment) -> None:
        """Apply changed variables and bounds; a different set of tiers is started in the background."""
        self._update_environment(deployment)
        self._request_roll_forward(deployment.roll_forward)

        bounds = find_tier_bounds(deployment, self._revision)
        for tier, tier_bounds in bounds.items():
            if tier in self._scalers:
                self._scalers[tier].bounds = tier_bounds

        if bounds.keys() != self._wanted_tiers:
            self._wanted_tiers = bounds.keys()
            if self._changing_tiers is not None:
                self._changing_tiers.cancel()

            self._changing_tiers = self._tasks.spawn(self._change_tiers(bounds))

    def _request_roll_forward(self, number: int | None) -> None:
        """Begin the roll forward that the control plane requests, unless it has begun. 0 requests none."""
        # An older control plane sends no number; -1 stands for its one request.
        request = -1 if number is None else number
        if request not in {0, self._begun_roll}:
            self._begun_roll = request
            self._tasks.spawn(Supervision("roll forward").run(partial(self._roll_forward, request)))

    async def _roll_forward(self, number: int) -> None:
        failure = None
        for tier in list(self._tiers.values()):
            await tier.is_serving.wait()
            failure = failure or await tier.roll_forward()

        self._ended_roll = number if number > 0 else None
        self._roll_failure = failure

    def metrics(self) -> MetricsReport | None:
        """Return the latest metrics."""
        return self._metrics

    def list_ports(self) -> list[int]:
        """Return the private ports of all replicas; empty while one is missing, starts or drains."""
        tiers = self._all_tiers()
        if not all(tier.is_steady for tier in tiers):
            return []

        return [replica.port for tier in tiers for replica in tier.replicas]

    def list_processes(self) -> set[ProcessIdentity]:
        """Return the processes of all replicas."""
        return {replica.process for tier in self._all_tiers() for replica in tier.replicas}

    async def stop_accepting(self) -> None:
        """Accept no new requests; requests and runs in flight continue."""
        await self._tasks.cancel()
        await asyncio.gather(*(tier.stop_accepting() for tier in self._all_tiers()))

    async def drain(self, grace_s: float) -> None:
        """After `stop_accepting`: wait up to the grace period for the replicas to finish, then reap them."""
        try:
            await asyncio.gather(*(tier.drain(grace_s) for tier in self._all_tiers()))
        finally:
            await self._output.close()
            await self._context.log.close()

    def interrupt(self) -> None:
        """Ask the replicas to hand their runs back and exit, also those that drain already."""
        for tier in self._all_tiers():
            tier.interrupt()

    async def stop(self, kill_after_s: float) -> None:
        """Stop quickly: replicas hand their runs back, and those that take longer than this are killed."""
        await self._tasks.cancel()
        self.interrupt()
        await self.drain(kill_after_s)

    async def _supervise(self, on_serving: OnServing | None) -> None:
        tiers = list(self._tiers.values())
        for tier in tiers:
            if not tier.is_serving.is_set():
                await Supervision("adoption of replicas").run(tier.adopt)
            tier.supervise()

        self._tasks.spawn(Supervision("metrics of replicas").run(self._measure_and_scale))
        await asyncio.gather(*(tier.is_serving.wait() for tier in tiers))

        if on_serving is not None:
            await Supervision("end of earlier replicas").run(on_serving)

    def _update_environment(self, deployment: DesiredDeployment) -> None:
        """Replace the replicas one by one when the platform's variables have changed, such as its API key."""
        plan = self._context.plan
        secret_names = {secret.name for secret in self._revision.secrets}

        platform = {name: value for name, value in deployment.environment.items() if name not in secret_names}
        if platform.items() <= plan.env.items():
            return

        self._context.plan = replace(plan, env={**plan.env, **platform})

        for tier in self._tiers.values():
            for replica in tier.replicas:
                tier.replace(replica, _CHANGED_VARIABLES)

    async def _change_tiers(self, bounds: dict[ServerTier, ReplicaBounds]) -> None:
        """Start the new tiers, and drain the ones that are no longer wanted once the new ones serve."""
        new_names = bounds.keys() - self._tiers.keys()
        for tier in self._add_tiers({name: bounds[name] for name in new_names}):
            tier.supervise()

        await asyncio.gather(*(self._tiers[name].is_serving.wait() for name in bounds))
        for name in self._tiers.keys() - bounds.keys():
            del self._scalers[name]
            tier = self._tiers.pop(name)
            tier.scale_to(0)
            self._retired_tiers.append(tier)  # its replicas may drain for long

    async def _measure_and_scale(self) -> None:
        while True:
            await self._measure()
            self._scale()
            await asyncio.sleep(_MEASURE_EVERY_S)

    async def _measure(self) -> None:
        replicas = [replica for tier in self._tiers.values() for replica in tier.replicas]
        cores = await self._read_usage(replicas)

        if self._is_asked_again(replicas, cores):
            ports = [[replica.port for replica in tier.replicas] for tier in self._tiers.values()]
            self._answers = [await read_metrics(tier_ports) for tier_ports in ports]
            self._asked_at = time.monotonic()

        self._cores = {name: _average_cores(tier.replicas, cores) for name, tier in self._tiers.items()}
        self._metrics = self._build_metrics(replicas, cores)

    async def _read_usage(self, replicas: list[Replica]) -> dict[int, float]:
        """Read what the replicas use, and enforce their memory limit.

        Returns how many cores each has used since the last reading, by the id of its process; only those that were read
        twice have a number.
        """
        usage = await READER.usage({replica.process.pid for replica in replicas})
        self.enforce_memory_limit(usage.groups)

        previous = self._usage
        self._usage = usage
        since_s = max(usage.read_at - previous.read_at, 0.001)

        cores = {}
        for pid in usage.groups.keys() & previous.groups.keys():
            used_s = usage.groups[pid].cpu_s - previous.groups[pid].cpu_s
            cores[pid] = max(0.0, used_s) / since_s

        return cores

    def _build_metrics(self, replicas: list[Replica], cores: dict[int, float]) -> MetricsReport:
        tiers = self._tiers.values()
        queue_tier = self._tiers.get(ServerTier.QUEUE)
        serving_count = sum(len(tier.replicas) for tier in tiers if tier.tier is not ServerTier.QUEUE)
        older = [replica for replica in replicas if replica.is_older]
        groups = self._usage.groups

        answers = [answer for answer in self._answers if answer is not None]
        queue = answers[0].queue if answers else QueueMetrics()

        problem = next((tier.problem for tier in tiers if tier.problem), None)
        if problem is None:
            problem = join_problems(answers) if serving_count else STARTING

        return MetricsReport(
            replicas=serving_count,
            queue_replicas=len(queue_tier.replicas) if queue_tier else 0,
            cpu=round(sum(cores.values()), 3) if groups else None,
            memory_mb=round(sum(group.memory for group in groups.values()) / _MB, 1) if groups else None,
            restarts=sum(tier.restarts for tier in tiers),
            pending_runs=queue.n_pending,
            active_runs=queue.n_running,
            oldest_wait_s=queue.pending_unblocked_runs_wait_time_max_secs,
            problem=problem,
            server_version=older[0].version if older else self._context.plan.server_version,
            is_behind=bool(older),
            roll_forward=self._ended_roll,
            roll_failure=self._roll_failure,
            threads_by_revision=answers[0].threads_by_revision if answers else None,
        )

    def _is_asked_again(self, replicas: list[Replica], cores: dict[int, float]) -> bool:
        """Whether to read the servers' metrics now: always, unless all of them answered that they have no runs."""
        is_known = len(self._answers) == len(self._tiers) == len({replica.tier for replica in replicas})
        is_idle = is_known and all(answer is not None and answer.queue.is_empty for answer in self._answers)

        # A replica counts as idle only once its CPU is known, which takes two measurements.
        is_quiet = len(cores) == len(replicas) and sum(cores.values()) < _IDLE_CORES
        return not (is_idle and is_quiet) or time.monotonic() - self._asked_at >= ASK_IDLE_EVERY_S

    def _scale(self) -> None:
        if self._metrics is None:
            return

        spec = self._revision.resource_spec
        for name, scaler in self._scalers.items():
            cpu = self._cores.get(name, 0.0) / float(spec.get("queue_cpu" if name is ServerTier.QUEUE else "cpu", 1))
            # More replicas of tier `api` would not execute any pending run.
            pending = None if name is ServerTier.API else self._metrics.pending_runs
            tier = self._tiers[name]
            tier.scale_to(scaler.decide(Load(len(tier.replicas), cpu, pending)))

    def enforce_memory_limit(self, groups: dict[int, GroupUsage]) -> None:
        """Replace replicas that use more memory than their limit; kill those that are far above it."""
        limit = self._context.plan.memory
        if limit is None:
            return

        for tier in self._tiers.values():
            for replica in list(tier.replicas):
                memory = groups[replica.process.pid].memory if replica.process.pid in groups else 0
                if memory <= limit:
                    continue

                excess = f"a server uses {memory // _MB} MB of memory, more than its limit of {limit // _MB} MB"
                tier.replace(replica, f"{excess} (memory_limit_mb); a new server replaces it")

                if memory > KILL_ABOVE * limit:
                    replica.process.kill_group()

    def _all_tiers(self) -> list[TierSupervisor]:
        return [*self._tiers.values(), *self._retired_tiers]

    def _add_tiers(self, bounds: dict[ServerTier, ReplicaBounds]) -> list[TierSupervisor]:
        supervisors = []
        for name, tier_bounds in bounds.items():
            supervisor = TierSupervisor(self._context, name, tier_bounds.minimum)
            supervisors.append(supervisor)
            self._tiers[name] = supervisor
            self._scalers[name] = Scaler(tier_bounds, self._scale_down_after_s)

        return supervisors

    def _log_line(self, line: str) -> None:
        entry = parse_line(line, int(time.time() * 1000))
        folder = self._context.plan.folder
        message = entry.message if folder is None else shorten_paths(entry.message, folder)
        self._context.log.add(message, entry.level, entry.timestamp)


def _average_cores(replicas: Collection[Replica], cores: Mapping[int, float]) -> float:
    """Return how many cores the replicas use on average; `cores` has those of each by the id of its process."""
    used_cores = sum(cores.get(replica.process.pid, 0.0) for replica in replicas)
    return used_cores / max(1, len(replicas))
