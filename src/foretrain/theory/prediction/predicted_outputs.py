"""What every prediction is: mean and spread of the outputs on test inputs, labelled, as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from foretrain.support.answers import (
    FAINT,
    INK,
    PALETTE,
    Answer,
    Axis,
    Cell,
    Figure,
    Panel,
    Part,
    Result,
    Table,
)
from foretrain.support.arguments import Array

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.theory.prediction.infinite_width.losses import ExpectedLoss
    from foretrain.theory.prediction.kernels import Spread


@dataclass(frozen=True, repr=False, eq=False)
class PredictedOutputs(Result):
    """Outputs on test inputs, over networks or under a posterior.

    ``mean`` has the dimensions (test, output). ``covariance`` (test_1, test_2) and ``variance`` (test,) are those of
    every output alike; what was not asked for is None. ``task`` holds the data it is about, where they are known.
    """

    mean: xr.DataArray
    covariance: xr.DataArray | None
    variance: xr.DataArray | None
    statement: str  # of how the outputs came about
    jitter: float = 0.0  # what had to be added to the diagonal of a kernel that was singular to rounding
    task: xr.Dataset | None = field(default=None, kw_only=True)

    @property
    def standard_deviation(self) -> xr.DataArray | None:
        """The root of the variance of each test output: (test,)."""
        return None if self.variance is None else (self.variance**0.5).rename("standard_deviation")

    def to_dataset(self) -> xr.Dataset:
        """Everything in one dataset, for saving."""
        import xarray as xr

        values = {each.name: getattr(self, each.name) for each in fields(self)}
        found = {name: value for name, value in values.items() if isinstance(value, xr.DataArray)}
        about = {name: value for name, value in values.items() if isinstance(value, str | int | float)}
        arrays, numbers = self._parts()
        task = {} if self.task is None else self.task
        return xr.Dataset(
            {**found, **arrays, **task}, attrs={**about, **numbers, **getattr(task, "attrs", {})}
        )

    def _parts(self) -> tuple[dict[str, xr.DataArray], dict[str, Any]]:
        """Arrays and numbers that are no fields themselves but parts of them."""
        return {}, {}

    def notes(self) -> list[str]:
        """What else is to be said about the numbers."""
        return []

    def about(
        self, X: Array, Y: Array, X_test: Array, Y_test: Array | None = None, **attributes: str
    ) -> Self:
        """The same with the data it is about, which its picture shows and its losses are of."""
        import xarray as xr

        given = {"x": X, "x_test": X_test, "y": Y} | ({} if Y_test is None else {"y_test": Y_test})
        found: dict[str, Any] = {}
        for name, values in given.items():
            dims = "test" if "test" in name else "train", "component" if name[0] == "x" else "output"
            found[name] = (dims[: np.ndim(values)], values)
        return replace(self, task=xr.Dataset(found, attrs=attributes))

    def only(self, spread: Spread) -> Self:
        """The same with no more than this spread kept."""
        return replace(
            self,
            covariance=self.covariance if spread == "covariance" else None,
            variance=None if spread == "none" else self.variance,
        )

    def answer(self) -> Answer:
        """Mean and spread in a table, the loss where targets are known, and the picture."""
        data = self.to_dataset()
        tests, outputs = self.mean.shape
        loss, accuracy = _loss(self, data), None
        if "y_test" in data and "probabilities" in data:
            likely = data["probabilities"].values.argmax(axis=1)
            accuracy = float((likely == data["y_test"].values).mean())
        terms = getattr(self, "terms", {})
        parts: list[Part] = [_table(data)]
        if self.jitter:
            parts.append(f"A jitter of {self.jitter:.3g} had to be added to the kernel's diagonal.")
        if terms:
            sizes = ", ".join(f"{name} {float(abs(part).max()):.3g}" for name, part in terms.items())
            parts.append(f"Added to the mean by finite width, at most: {sizes}.")
        parts += self.notes()
        if loss is not None:
            spread = (
                "" if loss.fluctuation is None else f", ± {loss.fluctuation**0.5:.4g} from network to network"
            )
            parts.append(
                f"Loss on the {tests} test inputs, {loss.name}: {loss.total:.6g} = bias {loss.bias:.6g} + variance "
                f"{loss.variance:.6g}{spread}."
            )
        if accuracy is not None:
            parts.append(f"The most probable class is the given one for {accuracy:.1%} of the test inputs.")
        counts = f"{tests} test input{'s' * (tests != 1)}, {outputs} output{'s' * (outputs != 1)}"
        names = ("bias", "variance", "fluctuation")
        record = {
            "statement": self.statement,
            "jitter": self.jitter,
            **{name: data[name].values for name in _ARRAYS if name in data},
            "terms": {name: part.values for name, part in terms.items()},
            **{name: data.attrs.get(name) for name in _NUMBERS},
            "accuracy": accuracy,
            "test_loss": None
            if loss is None
            else {"mean": loss.total, **{name: getattr(loss, name) for name in names}, "meaning": loss.name},
        }
        picture = lambda: prediction_figure(data)  # noqa: E731
        return Answer(f"{self.statement}: {counts}.", [*parts, picture], data=data, record=record)


def labelled_mean(values: Array, meaning: str) -> xr.DataArray:
    """Means (tests, outputs) with their labels."""
    import xarray as xr

    return xr.DataArray(values, dims=("test", "output"), name="mean", attrs={"meaning": meaning})


def labelled_tests(name: str, values: Array, meaning: str) -> xr.DataArray:
    """Numbers of test inputs (tests,), or of pairs of them (tests, tests), with their labels."""
    import xarray as xr

    dimensions = ("test",) if values.ndim == 1 else ("test_1", "test_2")
    return xr.DataArray(values, dims=dimensions, name=name, attrs={"meaning": meaning})


def labelled_spread(values: Array | None, meaning: str) -> tuple[xr.DataArray | None, xr.DataArray | None]:
    """Covariance and variance with their labels, from a covariance (tests, tests), a variance (tests,) or nothing.

    A variance that rounding made negative is zero.
    """
    if values is None:
        return None, None
    told = f"{meaning}, the same for every output"
    whole = values.ndim == 2
    covariance = labelled_tests("covariance", values, told) if whole else None
    alone = np.diagonal(values) if whole else values
    return covariance, labelled_tests("variance", np.maximum(alone, 0.0), told)


@dataclass(frozen=True, repr=False, eq=False)
class Prediction(PredictedOutputs):
    """Mean and covariance over initialisations of the outputs of trained networks, exact at infinite width."""

    eta: float | None = None  # the learning rate, where the answer depends on it
    time: float | None = None  # None: the end


def prediction(
    mean: Array,
    spread: Array | None,
    statement: str,
    eta: float | None = None,
    time: float | None = None,
    jitter: float = 0.0,
) -> Prediction:
    """A prediction with labels, from a mean (tests, outputs) and a covariance (tests, tests) or variance (tests,)."""
    covariance, variance = labelled_spread(spread, "covariance over initialisations (10.41)")
    return Prediction(
        labelled_mean(mean, "mean output over initialisations (10.40)"),
        covariance,
        variance,
        f"Networks of infinite width {statement}",
        jitter,
        eta,
        time,
    )


_ROWS, _OUTPUTS = 15, 4  # of the table and of the picture
_BARS = 60  # test inputs drawn one by one
_TERMS = ("term_", "mean_wiring", "mean_rest")  # names of what finite width adds
_ARRAYS = ("mean", "variance", "probabilities", "infinite_mean", "standard_error")
_NUMBERS = ("log_evidence", "infinite_log_evidence", "expansion", "terms_over_mean")


def _loss(found: PredictedOutputs, data: xr.Dataset) -> ExpectedLoss | None:
    """Mean loss over networks, where test targets and spread are known."""
    from foretrain.theory.prediction.infinite_width import (
        CROSS_ENTROPY,
        CrossEntropyPrediction,
        expected_loss,
    )

    if "y_test" not in data or found.variance is None:
        return None
    targets = data["y_test"].values
    if isinstance(found, CrossEntropyPrediction):
        classes = np.arange(found.mean.shape[1])
        return expected_loss(found.without_shift(), (targets[:, None] == classes) * 1.0, CROSS_ENTROPY)
    # Numbers of classes that another loss took are no outputs, whose squares could be asked for.
    return expected_loss(found, targets) if targets.size == found.mean.size else None


def _table(data: xr.Dataset) -> Table:
    """Evenly chosen test inputs; classes with their probabilities, else means with their spread."""
    classes = "probabilities" in data
    shown = data["probabilities" if classes else "mean"].values
    tests, outputs = shown.shape
    columns: dict[str, list[Cell]] = {"test": list(range(tests))}
    place = varying_component(data)
    if place is not None:
        columns["x"] = data["x_test"].values[:, place].tolist()
    label = "class" if classes else "mean" if outputs == 1 else "output"
    for output in range(min(outputs, _OUTPUTS)):
        own = "" if outputs == 1 else f" {output}"
        columns[f"{label}{own}"] = shown[:, output].tolist()
        if "infinite_mean" in data:
            columns[f"infinite width{own}"] = data["infinite_mean"].values[:, output].tolist()
    if not classes and "variance" in data:
        columns["± spread"] = np.sqrt(data["variance"].values.reshape(tests, -1)).max(axis=1).tolist()
    if "y_test" in data:
        given = data["y_test"].values.reshape(tests, -1)[:, :_OUTPUTS]
        for output, column in enumerate(given.T.tolist()):
            columns["given" if len(given.T) == 1 else f"given {output}"] = column
    caption = "Outputs on test inputs"
    caption += f", the first {_OUTPUTS} of {outputs}" if outputs > _OUTPUTS else ""
    return Table(tuple(columns), list(zip(*columns.values(), strict=True)), caption).thinned(_ROWS)


def varying_component(data: xr.Dataset) -> int | None:
    """The one component in which rows of inputs differ, if the inputs are known and there is one."""
    if "x" not in data:
        return None
    moving = np.flatnonzero(np.ptp(np.concatenate([data["x"].values, data["x_test"].values]), axis=0) > 0)
    return int(moving[0]) if len(moving) == 1 else None


def prediction_figure(data: xr.Dataset) -> Figure:
    """The picture of a prediction with its data, as ``foretrain predict --save`` writes it.

    Needs ``mean`` (test, output); uses ``variance``, ``probabilities``, ``x``, ``x_test``, ``y`` and ``y_test``.
    """
    place = varying_component(data)
    title = f"{data.attrs.get('network', '')}\n{data.attrs.get('statement', '')}".strip()
    if "probabilities" in data:
        figure = Figure(title, size=(7.0, 4.4))
        _draw_classes(figure.panel(legend="right"), data, place)
        return figure
    outputs = min(data.sizes["output"], _OUTPUTS)
    shifted = place is not None and "infinite_mean" in data
    columns = 2 if outputs == _OUTPUTS and not shifted else outputs
    rows = 2 if shifted else -(-outputs // columns)
    beside = place is None and "y_test" in data
    width = 7.0 if outputs == 1 and not beside else 4.6 * columns
    figure = Figure(title, columns=columns, size=(width, 3.9 * rows + 0.5))
    for output in range(outputs):
        panel = figure.panel(f"output {output}" if data.sizes["output"] > 1 else "")
        if place is not None:
            # Mean with bands of one and two standard deviations, training points, and the given targets.
            panel.x, panel.y = _input_axis(data, place), Axis("output")
            order = np.argsort(data["x_test"].values[:, place])
            x = data["x_test"].values[order, place]
            mean, spread = data["mean"].values[order, output], _spread(data, output)
            if spread is not None:
                for times, word, alpha in ((2, "standard deviations", 0.14), (1, "standard deviation", 0.24)):
                    low, high = mean - times * spread[order], mean + times * spread[order]
                    panel.region(x, low, high, f"± {times} {word}", PALETTE[0], alpha=alpha)
            if "y_test" in data:
                panel.curve(
                    x, _column(data["y_test"].values, output)[order], "--", "given on test inputs", FAINT
                )
            panel.curve(x, mean, "-", "mean", PALETTE[0])
            panel.curve(
                data["x"].values[:, place], _column(data["y"].values, output), "o", "training targets", INK
            )
        elif beside:
            _draw_beside(panel, data, output)
        else:
            _draw_sorted(panel, data, output)
    if shifted and place is not None:
        for output in range(outputs):
            _draw_shift(figure.panel(legend="below", legend_columns=3), data, place, output)
    return figure


def _spread(data: xr.Dataset, output: int) -> Array | None:
    return _column(np.sqrt(data["variance"].values), output) if "variance" in data else None


def _column(values: Array, output: int) -> Array:
    return np.asarray(values if values.ndim == 1 else values[:, output])


def _input_axis(data: xr.Dataset, place: int) -> Axis:
    return Axis("input" if data.sizes["component"] == 1 else f"component {place} of the input")


def _draw_shift(panel: Panel, data: xr.Dataset, place: int, output: int) -> None:
    """What finite width adds to the mean, in all and by origin."""
    panel.x, panel.y = _input_axis(data, place), Axis("added to the mean by finite width")
    order = np.argsort(data["x_test"].values[:, place])
    x = data["x_test"].values[order, place]
    for name in map(str, data):
        if name.startswith(_TERMS):
            panel.curve(x, data[name].values[order, output], "-", name.partition("_")[2], width=1.2)
    whole = (data["mean"] - data["infinite_mean"]).values[order, output]
    panel.curve(x, whole, "-", "in all", INK, width=2.0)
    panel.curve(data["x"].values[:, place], np.zeros(data.sizes["train"]), "o", color=INK)


def _draw_beside(panel: Panel, data: xr.Dataset, output: int) -> None:
    """Predicted against given outputs; on the diagonal they agree."""
    panel.x, panel.y = Axis("given"), Axis("predicted")
    given, mean = _column(data["y_test"].values, output), data["mean"].values[:, output]
    _points(panel, given, mean, _spread(data, output))
    ends = [min(given.min(), mean.min()), max(given.max(), mean.max())]
    panel.curve(ends, ends, "--", "predicted = given", INK, width=1.0)
    error = np.sqrt(np.mean((mean - given) ** 2))
    told = f"root mean square error {error:.3g}\nspread of given targets {given.std():.3g}"
    panel.note(0.97, 0.03, told, align="right", above=True, fraction=True, size=8.5)


def _draw_sorted(panel: Panel, data: xr.Dataset, output: int) -> None:
    """Test inputs by their predicted mean."""
    panel.x, panel.y = Axis("test input, by its mean"), Axis("output")
    mean, spread = data["mean"].values[:, output], _spread(data, output)
    order = np.argsort(mean)
    panel.level(0.0)
    _points(panel, np.arange(float(len(mean))), mean[order], None if spread is None else spread[order])


def _points(panel: Panel, x: Array, mean: Array, spread: Array | None) -> None:
    label = "mean" if spread is None else "mean ± standard deviation"
    alpha = 0.7 if len(x) < 300 else 0.35
    panel.curve(x, mean, "o", label, PALETTE[0], error=spread, size=3.5, alpha=alpha)


def _draw_classes(panel: Panel, data: xr.Dataset, place: int | None) -> None:
    """Mean probabilities of classes: bands along the one input that varies, else a bar for each test input."""
    chances = data["probabilities"].values
    order = np.lexsort((chances.max(axis=1), chances.argmax(axis=1)))
    if place is not None:
        order = np.argsort(data["x_test"].values[:, place])
    elif len(order) > _BARS:
        order = order[np.linspace(0, len(order) - 1, _BARS).round().astype(int)]
    where = np.arange(len(order)) if place is None else data["x_test"].values[order, place]
    panel.x = Axis("test input, by class") if place is None else _input_axis(data, place)
    panel.y, panel.grid = Axis("mean probability over networks", low=-0.08, high=1.0), False
    tops = np.cumsum(chances[order], axis=1)
    low = np.zeros(len(order))
    for number, high in enumerate(tops.T):
        color, label = PALETTE[number % len(PALETTE)], f"class {number}" if number < 8 else ""
        if place is None:
            panel.bars(where, high - low, label, color, base=low, width=0.9)
        else:
            panel.region(where, low, high, label, color, alpha=1.0)
        low = high
    if "y_test" in data:
        panel.legend_entry("s", "given class", FAINT)
        given = data["y_test"].values[order].astype(int)
        for number in np.unique(given):
            own = where[given == number]
            panel.curve(own, np.full(len(own), -0.045), "s", color=PALETTE[number % len(PALETTE)], size=4)
