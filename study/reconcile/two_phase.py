"""Submitting one job or array in two phases (intent, confirmation), and resolving intents without confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from study.executors import detached
from study.executors.base import JobRequest, SubmitError
from study.executors.job_spec import JobSpec
from study.executors.jobs import Lookup, LookupAnswer
from study.process import code_snapshot
from study.reconcile.decide import WINDOW_SECONDS, Abandon, Confirm, Leave, decide
from study.reconcile.services import Services
from study.records import ledger
from study.storage.files import DiskReserve
from study.storage.layout import StudyFolder

RETRY_SECONDS = 2.0
RESERVE_BYTES = 16_384
"""Room for what became of a submission: a disk that fills up in between must not leave that unclear."""


@dataclass(frozen=True)
class Request:
    """One array, or one job that is no array, as it is to be submitted and written into the ledger.

    jobs: of the array; None: it is none. keys: the points of its jobs. code: the version that they run. throttle: how
    many may run at once. module: what each task runs. also: what the ledger says of its resources besides the shape.
    """

    name: str
    shape: JobSpec
    jobs: int | None
    keys: tuple[str, ...] = ()
    code: str | None = None
    throttle: int | None = None
    module: str = "study.job"
    also: Mapping[str, Any] = field(default_factory=dict)
    executor: str = field(kw_only=True)

    def job_request(self, folder: StudyFolder) -> JobRequest:
        """Return what its executor is asked. ValueError where the copy of the code that it runs is gone."""
        copy = code_snapshot.source(folder, self.shape.code, self.code)
        return JobRequest(folder, self.shape, self.name, self.jobs, self.throttle, self.module, copy)

    def intent(self) -> dict[str, Any]:
        """Return the event that says that it is about to be submitted."""
        asked: dict[str, Any] = {"resources": {**self.shape.record(), **self.also}, "code": self.code}
        if self.throttle is not None:
            asked["throttle"] = self.throttle
        if self.jobs is None:
            asked["array"] = False
        return {"event": "intent", "name": self.name, "executor": self.executor, "keys": list(self.keys), **asked}


@dataclass(frozen=True)
class Sent:
    """A submission's job id; without one, why there is no room for it now."""

    job_id: str | None
    full: str = ""


def send(folder: StudyFolder, request: Request, services: Services, *, patient: bool = True) -> Sent:
    """Submit: the intent first, then the script, then what became of it. For the submit lock's holder.

    Raises ValueError (a SubmitError) where the scheduler refuses for good, or nobody knows whether it accepted.
    """
    executor, job = services.executor(request.executor), request.job_request(folder)
    script = executor.render(job)  # what cannot be rendered leaves no intent
    reserve = DiskReserve(folder.reserve, RESERVE_BYTES, required=True)
    try:
        ledger.extend(folder, [request.intent()])
        try:
            job_id = executor.submit(job, script)
        except SubmitError as error:
            reserve.release()
            if error.full:
                ledger.append(folder, "abandoned", name=request.name, why=str(error))
                return Sent(None, str(error))
            return Sent(after_error(folder, request.name, error, services, patient=patient))
        except OSError as error:  # the script could not be written, so the scheduler was not asked
            reserve.release()
            ledger.append(folder, "abandoned", name=request.name, why=f"it was not submitted: {error}")
            raise
        reserve.release()
        ledger.append(folder, "submitted", name=request.name, job_id=job_id)
        return Sent(job_id)
    finally:
        reserve.release()


def resolve_unclear(
    folder: StudyFolder, services: Services, *, patient: bool = True, force: bool = False
) -> list[Leave]:
    """Resolve unclear submissions as far as the scheduler says; return those that stay. For the submit lock's holder.

    patient: wait out the short window in which a submission may still be on its way. force: on the user's word, give up
    what the scheduler does not confirm, even where it does not answer. Jobs of such a submission that start after all
    find that they are not wanted, and end.
    """
    limit = services.clock() + 2 * WINDOW_SECONDS
    while True:
        left, on_its_way = _resolve_once(folder, services)
        if not (patient and on_its_way) or services.clock() > limit:
            break
        services.sleep(RETRY_SECONDS)
    if force:
        for action in left:
            ledger.append(folder, "abandoned", name=action.name, why=f"given up by the user: {action.why}")
            services.report(f"{action.name}: given up: its points are submitted again")
        return []
    return left


def _resolve_once(folder: StudyFolder, services: Services) -> tuple[list[Leave], bool]:
    """Resolve what can be; return what stays, and whether some of it may still be on its way to the scheduler."""
    state = ledger.read(folder)
    unclear = [batch for batch in state.batches.values() if batch.ambiguous]
    lookups = {batch.name: _look_up(folder, batch, services) for batch in unclear if detached(batch)}
    left: list[Leave] = []
    for action in decide((), state, {}, lookups, services.clock()):
        if isinstance(action, Confirm):
            ledger.append(folder, "submitted", name=action.name, job_id=action.job_id)
            services.report(f"{action.name}: was submitted as job {action.job_id}")
        elif isinstance(action, Abandon):
            ledger.append(folder, "abandoned", name=action.name, why=action.why)
            services.report(f"{action.name}: never reached the scheduler: its points are submitted again")
        elif isinstance(action, Leave):
            left.append(action)
    return left, any(lookups[action.name].answer == LookupAnswer.ABSENT for action in left)


def after_error(folder: StudyFolder, name: str, error: ValueError, services: Services, *, patient: bool = True) -> str:
    """Return the job id if the submission went through in spite of the error; else raise, the ledger being up to date.

    What SLURM refuses for good waits no more, and neither does what was to be submitted in the same way.
    """
    if not getattr(error, "ambiguous", True):
        state = ledger.read(folder)
        same = [key for key, asked in state.waiting.items() if asked.resources == state.batches[name].resources]
        refused = [{"event": "refused", "keys": same, "why": str(error)}] if same else []
        ledger.extend(folder, [{"event": "abandoned", "name": name, "why": str(error), "final": True}, *refused])
        raise error
    resolve_unclear(folder, services, patient=patient)
    batch = ledger.read(folder).batches[name]
    if batch.job_id is not None:
        return batch.job_id
    if batch.abandoned is not None:
        raise ValueError(
            f"{error}: nothing was submitted: run the command again, with other cluster.* if sbatch refuses these"
        ) from error
    raise ValueError(f"{error}: it is not known whether {name} was submitted: run the command again later") from error


def _look_up(folder: StudyFolder, batch: ledger.Batch, services: Services) -> Lookup:
    """Look an ambiguous submission up: in the attempts that it may have made already, then by its name."""
    from study.records.attempts import latest_attempt

    for key in batch.keys:
        run = folder.run(key)
        attempt = latest_attempt(run) if run.attempts.is_dir() else None
        if attempt is not None and attempt.batch == batch.name:
            return Lookup(LookupAnswer.FOUND, str(attempt.job["job_id"]).partition("_")[0])
    return services.executor(batch.executor).find(batch.name, batch.time)
