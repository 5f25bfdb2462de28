"""``ft.doctor``: train a torch model for a while beside baselines, say what will hold learning back, and prove it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from foretrain.compare.task import Loss, Task, squared_error
from foretrain.doctor.budget import Account, default_budget
from foretrain.doctor.checks import CHECKS, Check, Effort
from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.frameworks import configured_optimizer, trainer_parts
from foretrain.doctor.intake import (
    Output,
    bare_model,
    first_line,
    fitted_task,
    gathered,
    is_trainer,
    private_copy,
    samples_first,
    summed_over_steps,
)
from foretrain.doctor.proof import prove, spare
from foretrain.doctor.setup import (
    ONLY_STEPS,
    Case,
    Recipe,
    Schedule,
    Setup,
    descent,
    recipe_of,
    suited_threads,
    work_of,
)
from foretrain.doctor.stability import with_chosen_rate
from foretrain.doctor.step_task import Step, fitted_step_task, own_loss, training_step, user_step
from foretrain.doctor.trials import descend, shortened_trials
from foretrain.empirical.target_modes import mask_weights
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError, error_text, unknown_name
from foretrain.support.progress import (
    Deadline,
    OutOfTimeError,
    Progress,
    parse_duration,
    patient_clock,
    stop_if_late,
    within,
)
from foretrain.support.seeds import Seed, integer, kept_random_states
from foretrain.support.user_warnings import warn_user

_CUT = Examination(skipped="there was no time for it.", cut=True)
_FIRST = 0.6  # of the time, that may be over before there is time for what comes later
_FAR_TOO_LONG = 2.0  # times what is left: a check that is likely to take longer leaves the time to others
_TELLING = 5.0  # steps from which on the time of a training tells that of a step
_GLANCE = 0.02  # of the time, that it may take all the same
BRIEF_STEPS = 300  # of the trainings that prove one finding, about


@dataclass(frozen=True)
class Training:
    """How the user trains: what ``doctor`` is told besides the model and the data."""

    loss: Loss | str | None = None
    optimizer: torch.optim.Optimizer | float | None = None
    batch_size: int | None = None
    output: Output = None
    fresh: bool | None = None
    seed: Seed = 0
    step: Step | Callable[..., Any] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    autocast: torch.dtype | None = None
    scheduler: Schedule | None = None
    mask: Any = None

    def recipe(self, model: nn.Module, every: int = 1) -> Recipe:
        """The optimizer as a recipe; plain descent at a rate that is chosen later where there is none.

        The scheduler moves ``every`` so many steps.
        """
        optimizer, chosen = 1.0 if self.optimizer is None else self.optimizer, self.optimizer is None
        number = isinstance(optimizer, int | float | np.number) and not isinstance(optimizer, bool)
        if isinstance(optimizer, torch.optim.Optimizer):
            recipe = recipe_of(model, optimizer, self.scheduler, every)
        elif number and 0 < optimizer < math.inf:
            recipe = descent(model, float(optimizer))
            if self.scheduler is not None:
                recipe = recipe_of(model, recipe.build(model), self.scheduler, every)
        else:
            raise InputError(
                f"`optimizer` is {optimizer!r}: give a torch optimizer, or a positive learning rate of plain descent."
            )
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value)
        kind = self.autocast
        if kind is not None and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            raise InputError(
                f"`autocast` is {kind!r}: give a type of torch for real numbers, such as torch.bfloat16."
            )
        if self.fresh not in (None, True, False):
            raise InputError(f"`fresh` is {self.fresh!r}: give True, False, or leave it out.")
        return replace(
            recipe,
            chosen=chosen,
            clip_norm=self.clip_norm,
            clip_value=self.clip_value,
            accumulate=whole_number("accumulate", self.accumulate),
            autocast=self.autocast,
        )


def doctor(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    loss: Loss | str | None = None,
    step: Callable[..., Any] | None = None,
    optimizer: torch.optim.Optimizer | float | None = None,
    scheduler: Schedule | None = None,
    batch_size: int | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    autocast: torch.dtype | None = None,
    output: Output = None,
    mask: Any = None,
    fresh: bool | None = None,
    checks: Iterable[str] | str | None = None,
    budget: float | str | None = None,
    seed: Seed = 0,
) -> Diagnosis:
    """Say what will hold back the learning of a fresh or half-trained network, and what to do about it.

    Parameters
    ----------
    model
        Any ``nn.Module``; it is copied and not changed. A Lightning module brings its loss and its optimizer, and a
        ``transformers.Trainer`` in its place brings everything.
    x, y
        Inputs and targets: arrays or tensors with one entry for each sample, or as ``x`` a dict or tuple of them for
        a model with several arguments. As ``x`` alone a DataLoader, a dataset, a list of batches, or one batch: pairs
        of inputs and targets, dicts whose targets are called labels, label, targets, target or y, or whatever
        ``step`` takes. Of many samples some thousands are looked at.
    loss
        "mse", "cross_entropy", "squared_error" (half the SUM of squares in a step) or any function of outputs and
        targets, best a mean over samples; by default the model's own, where it has a ``training_step`` or returns a
        loss for batches with labels, else cross-entropy for labels that are whole numbers, else "mse". A function is
        called with what was given, also where it broadcasts.
    step
        Instead of ``loss``: a function of the model and a batch, or of a batch alone, that returns the loss and makes
        no step itself.
    optimizer
        A torch optimizer of the model, or the learning rate of plain descent. Without it the doctor chooses plain
        descent at half the largest stable rate.
    scheduler
        A torch scheduler of this optimizer that is stepped after every step, or a function from the number of a step
        to the factor of the rate. It is not advanced.
    batch_size
        Samples in a batch; by default all, or what the DataLoader takes.
    accumulate
        How many batches make one step of the optimizer.
    clip_norm, clip_value
        The largest norm of all gradients together, and the largest entry of a gradient.
    autocast
        The precision in which the passes are made, such as ``torch.bfloat16``.
    output
        Position or name of the tensor that counts, of a model that returns several; by default the first.
    mask
        Where squared errors count, with the first axes of y, the same for all samples: others are left out of the
        loss, of the scores and of the modes.
    fresh
        Whether training has not begun, so that weights may be drawn anew. By default it has begun if the optimizer
        has state or a batch normalisation has seen data.
    checks
        Names of those to make, by default all.
    budget
        Seconds that all of it may take, by default 30 for models of up to a million parameters and 120 for ten
        million, not counting what other work on a busy machine takes; also a text such as "2m". The training that
        shows whether the network learns comes first and ends with the steps it has made; what is not reached is
        named. Ctrl-C ends it as well.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> x = torch.randn(64, 8)
    >>> found = doctor(network, x, x[:, :1], checks=["inputs"])
    >>> list(found.examinations)
    ['inputs']
    """
    chosen = chosen_checks(checks)
    if isinstance(budget, str):
        budget = parse_duration(budget, "`budget`")
    if budget is not None and not (isinstance(budget, int | float) and budget > 0):
        raise InputError(f"`budget` is {budget!r}: give a positive number of seconds.")
    clock = patient_clock() if budget is None else time.monotonic
    start = clock()
    training = Training(
        loss=loss,
        optimizer=optimizer,
        batch_size=batch_size,
        output=output,
        fresh=fresh,
        seed=seed,
        step=step,
        clip_norm=clip_norm,
        clip_value=clip_value,
        accumulate=accumulate,
        autocast=autocast,
        scheduler=scheduler,
        mask=mask,
    )
    with kept_random_states():
        setup = make_setup(model, x, y, training, None if budget is None else Deadline(budget, clock, start))
        seconds = default_budget(setup.trained_parameters) if budget is None else float(budget)
        return diagnose(setup, chosen, Deadline(seconds, clock, start))


def diagnose(setup: Setup, checks: Iterable[Check] = CHECKS, deadline: Deadline | None = None) -> Diagnosis:
    """The same for a setup that is made already; the deadline is by default that of a model of its size.

    The outcome comes first, then what takes a few passes, then theory, then trainings that prove what was found. What
    the deadline or Ctrl-C cuts is named, with the budget that would have sufficed.
    """
    deadline = deadline or Deadline(default_budget(setup.trained_parameters), patient_clock())
    case, registered = Case(setup), tuple(checks)
    asked = sorted(registered, key=lambda check: (check.effort, check.steps))
    examinations, cut_seconds, interrupted = dict[str, Examination](), list[float](), False
    step_seconds = 0.0  # of a step of training, as the outcome shows it
    with within(deadline):
        bar = Progress("looking", total=len(asked))

    def take(check: Check, limit: Deadline) -> None:
        nonlocal step_seconds
        bar.describe(f"looking at {check.name} ({len(examinations) + 1} of {len(asked)})")
        start, likely = deadline.spent, check.steps * step_seconds
        if (
            check.effort is not Effort.OUTCOME and likely > _FAR_TOO_LONG * limit.left
        ):  # it may still be told at once that it does not apply
            limit = replace(limit, seconds=min(limit.seconds, start + _GLANCE * limit.seconds))
        one = look(case, check, limit)
        took, examinations[check.name] = deadline.spent - start, one
        if one.cut:
            work_of(setup)  # a step takes at least as long as the pass by which it was counted
            cut_seconds.append(max(likely, check.steps * setup.known["pass seconds"], 2 * took))
        if check.effort is Effort.OUTCOME and one.worst is not None:
            step_seconds = took / max(_TELLING, one.worst.numbers.get("steps", 1.0))
        bar.advance()

    try:
        with bar:
            looks = [check for check in asked if check.effort < Effort.TRAINING]
            for check in looks:
                take(check, _limit(check, examinations, deadline))
            for check in looks:
                bar.describe(f"trying what {check.name} advises")
                examinations[check.name] = tried(case, check, examinations[check.name], deadline)
            for check in asked[len(looks) :]:
                take(check, deadline)
    except KeyboardInterrupt:
        interrupted = True
    untried = sum(one.untried for one in examinations.values()) * BRIEF_STEPS * step_seconds
    spent = deadline.spent
    account = Account(deadline.seconds, spent, spent + sum(cut_seconds) + untried, interrupted)
    for check in asked:
        if examinations.get(check.name, _CUT).cut:
            examinations[check.name] = replace(_CUT, skipped=f"{account.reason}.")
    return Diagnosis(setup, {check.name: examinations[check.name] for check in registered}, account)


def _limit(check: Check, known: Mapping[str, Examination], deadline: Deadline) -> Deadline:
    """What a check may take: the outcome leaves some time to the others, and theory to trainings in other ways.

    The latter only where the outcome is bad.
    """
    if check.effort is Effort.OUTCOME:
        return replace(deadline, seconds=_FIRST * deadline.seconds)
    outcome = known["outcome"].worst if "outcome" in known else None
    if check.effort is not Effort.THEORY or outcome is None or outcome.severity is Severity.GOOD:
        return deadline
    return replace(deadline, seconds=_FIRST * deadline.seconds)


def examined(case: Case, check: Check, deadline: Deadline) -> Examination:
    """One check, with its cures tried."""
    return tried(case, check, look(case, check, deadline), deadline)


def look(case: Case, check: Check, deadline: Deadline) -> Examination:
    """What a check finds, before its cures are tried."""
    try:
        with suited_threads(case.setup), within(deadline):
            stop_if_late()
            return check.function(case)
    except OutOfTimeError:
        return _CUT
    except ForetrainError as error:
        return Examination(skipped=str(error))
    except NotImplementedError as error:
        return Examination(skipped=f"torch lacks a derivative that this check needs ({first_line(error)}).")
    except Exception as error:  # one check that fails on an unusual model must not hide what the others found
        if case.setup.batch_size is not None and not case.setup.known.get(ONLY_STEPS):
            case.setup.known[ONLY_STEPS] = True  # a model may take as many samples as a step has, and no more
            again = look(Case(case.setup), check, deadline)
            case.setup.known[ONLY_STEPS] = not again.failed
            return again
        failure = _step_failure(case.setup) if check.effort is Effort.OUTCOME else ""
        if failure:
            finding = Finding(
                Severity.CRITICAL,
                f"It cannot be trained: {failure}.",
                "The first step of the training ended with this error.",
                "measured: a step of the training as given",
                "Mend what the message says: the model takes a few samples at rest, but no step of training.",
            )
            return Examination((finding,), failed=True)
        if isinstance(error, MemoryError):
            return Examination(skipped=f"the memory does not suffice ({first_line(error)}).")
        # Told as a note and as a warning: what was not looked at must not pass for healthy.
        reason = f"This check failed on this model ({error_text(error)})"
        warn_user(f"{check.name}: {reason}.", RuntimeWarning)
        note = Finding(
            Severity.NOTE,
            f"{reason}, so that this question is open.",
            f"Not answered: {check.question}",
            "",
            "Please report it with the model and this message; the other checks are not concerned.",
        )
        return Examination((note,), failed=True)


def _step_failure(setup: Setup) -> str:
    """How the first step of a training fails; empty where it does not."""
    model = copy.deepcopy(setup.model).train()
    size = min(setup.batch_size or len(setup.task.x), len(setup.task.x))
    try:
        descend(setup.recipe.build(model), model, setup.task.taken(torch.arange(size)))
    except Exception as error:  # whatever the user's model stumbles over
        return error_text(error)
    return ""


def tried(case: Case, check: Check, examination: Examination, deadline: Deadline) -> Examination:
    """The same after its cures were tried, as far as there is time for it."""
    try:
        with suited_threads(case.setup), within(deadline):
            return prove(case, spare(case, examination))
    except OutOfTimeError:
        return replace(examination, untried=True)
    except Exception as error:
        return replace(
            examination,
            findings=tuple(_unproved(finding, error_text(error)) for finding in examination.findings),
        )


def _unproved(finding: Finding, reason: str) -> Finding:
    """The finding says that its cure could not be tried, if it has one."""
    if finding.treatment is None or finding.proof:
        return finding
    advice = f"{finding.advice} (This could not be tried on this model: {reason}.)"
    return replace(finding, advice=advice, treatment=None)


def masked(model: nn.Module, task: Task, mask: Any, shape: tuple[int, ...]) -> Task:
    """The task with roots of the mask on its targets and, by a hook, on the outputs, so that it weighs squares."""
    mean = task.loss is nn.functional.mse_loss
    if not (mean or task.loss is squared_error):
        raise NotSupportedError(
            "`mask` weighs squared errors: leave the loss out, or give it as a `step` of your own."
        )
    weights = mask_weights(mask, shape)
    if (weights != weights[:1]).any():
        raise NotSupportedError(
            "this `mask` differs between samples, but here it must be the same for all of them: give a `step` of "
            "your own, which returns the loss of a batch with its mask."
        )
    roots = np.sqrt(weights[0] / (weights[0].mean() if mean else 1.0))
    factors = torch.as_tensor(roots).to(task.y).reshape(task.y.shape[1:])
    model.register_forward_hook(lambda module, given, outputs: outputs * factors)
    return replace(task, y=torch.where(factors > 0, task.y * factors, 0.0))


def make_setup(
    model: Any,
    x: Any = None,
    y: Any = None,
    training: Training = Training(),
    deadline: Deadline | None = None,
) -> Setup:
    """What is trained and how, checked and copied; a rate must be chosen before the deadline."""
    model = bare_model(model)
    if is_trainer(model):
        parts = trainer_parts(model)
        model, x = parts.model, parts.batches if x is None else x
        training = replace(training, step=parts.step, optimizer=parts.optimizer, **parts.options)
    private, seed = private_copy(model), integer(training.seed)  # also refuses what is no seed
    if isinstance(training.seed, int | np.integer):
        seed = int(training.seed)
    if training.mask is not None and training.step is not None:
        raise InputError("a `step` knows by itself what counts: leave `mask` out.")
    if training.loss is not None and training.step is not None:
        raise InputError("`loss` and `step` both say what is lowered: leave one of them out.")
    samples, step, every = gathered(x, y, seed), training.step, 1
    if training.loss is None and step is None:
        if callable(getattr(model, "training_step", None)):
            step = training_step(model)
        else:
            step = own_loss(model, private, samples)
    if step is not None and training.optimizer is None and hasattr(model, "configure_optimizers"):
        optimizer, scheduler, by_epoch = configured_optimizer(model)
        training = replace(training, optimizer=optimizer, scheduler=training.scheduler or scheduler)
        steps = max(samples.total, len(samples.batch)) / (
            training.batch_size or samples.batch_size or math.inf
        )
        every = math.ceil(steps / training.accumulate) if by_epoch else 1
    if step is not None and training.optimizer is None:
        raise InputError(
            "a rate can be chosen only where the loss is a function of outputs and targets: give `optimizer=`, a "
            "torch optimizer or the learning rate of plain descent."
        )
    recipe = training.recipe(model, max(1, every))
    if step is None:
        samples = samples_first(private, samples)
        task = fitted_task(private, samples, training.loss, training.output)
        task = task if training.mask is None else masked(private, task, training.mask, np.shape(y))
    else:
        step = step if isinstance(step, Step) else user_step(step, model)
        task = fitted_step_task(private, samples, step, training.output)
    asked = samples.batch_size or max(samples.total, len(samples.x))
    if training.batch_size is not None:
        asked = whole_number("batch_size", training.batch_size)
    if training.batch_size is not None or samples.batch_size is not None:
        asked *= recipe.accumulate
    task = summed_over_steps(task, min(asked, max(samples.total, len(task.x))))
    size, fresh = (asked if asked < len(task.x) else None), training.fresh
    if fresh is None:  # unless the optimizer has state or a batch normalisation has seen data
        stepped = isinstance(training.optimizer, torch.optim.Optimizer) and training.optimizer.state
        counts = [value for name, value in model.named_buffers() if name.endswith("num_batches_tracked")]
        fresh = not stepped and not any(int(count) > 0 for count in counts)
    setup = Setup(private, task, recipe, size, seed, fresh, samples.notes, in_order=samples.in_order)
    try:
        setup = replace(setup, notes=(*setup.notes, *shortened_trials(setup)))
    except Exception as error:  # whatever the user's model stumbles over
        raise InputError(
            f"the model takes several samples at rest, but not a single one ({error_text(error)}): let it answer "
            "each sample by itself in evaluation mode, into which only parts of the model are put."
        ) from error
    if recipe.chosen:
        try:
            with within(deadline or Deadline(default_budget(setup.trained_parameters), patient_clock())):
                return with_chosen_rate(setup)
        except OutOfTimeError as error:
            raise InputError(
                "there was no time to choose a learning rate: give `optimizer=`, or a larger `budget`."
            ) from error
        except NotImplementedError as error:  # layers of which torch has no second derivative
            raise NotSupportedError(
                f"no rate can be chosen for this model ({first_line(error)}): give `optimizer=`."
            ) from error
    try:
        recipe.build(private)
    except (TypeError, ValueError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"the optimizer {recipe.kind.__name__} cannot be made again for a copy of the model ({first}): give "
            "an optimizer of torch.optim, or the learning rate of plain descent."
        ) from error
    return setup


def chosen_checks(names: Iterable[str] | str | None) -> tuple[Check, ...]:
    """By their names (also as one text with commas), in the order of the registry; None means all."""
    if names is None:
        return CHECKS
    if not isinstance(names, Iterable):
        raise InputError(f"`checks` is {names!r}: give names of checks, as in checks=['outcome', 'loss'].")
    asked = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    known = {check.name: check for check in CHECKS}
    for name in asked:
        if name not in known:
            raise unknown_name("check", str(name), known, "checks")
    return tuple(check for check in CHECKS if check.name in asked)
