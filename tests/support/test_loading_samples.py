from pathlib import Path

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.support.loading import load_model_data, load_samples


def test_inputs_are_enough(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((4, 2, 3)), x_test=np.zeros((2, 2, 3)))
    found = load_samples(tmp_path / "data.npz")
    assert found.x.shape == (4, 2, 3)
    assert found.x_test is not None
    assert found.y is None
    assert found.y_test is None


def test_what_is_there_is_checked(tmp_path: Path) -> None:
    np.savez(tmp_path / "short.npz", x=np.ones((4, 2)), y=np.ones(3))
    with pytest.raises(InputError, match="one target per input"):
        load_samples(tmp_path / "short.npz")
    np.savez(tmp_path / "other.npz", y=np.ones(3))
    with pytest.raises(InputError, match=r"'x'.*numpy.savez\(path, x=\.\.\.\)"):
        load_samples(tmp_path / "other.npz")


def test_what_is_loaded_tells_its_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((30, 2)), y=np.ones(30))
    assert repr(load_samples(tmp_path / "data.npz")) == "Samples(x (30, 2), y (30,))"


def test_without_x_arrays_are_arguments_by_name(tmp_path: Path) -> None:
    a, b, y = np.ones((3, 2)), np.arange(3), np.zeros(3)
    np.savez(tmp_path / "named.npz", a=a, b=b, y=y, x_test=a)
    inputs, targets = load_model_data(tmp_path / "named.npz")
    assert isinstance(inputs, dict)
    assert list(inputs) == ["a", "b"]
    assert inputs["b"].dtype == b.dtype
    assert len(targets) == 3
    np.savez(tmp_path / "plain.npz", x=a, y=y)
    assert isinstance(load_model_data(tmp_path / "plain.npz")[0], np.ndarray)
    np.savez(tmp_path / "both.npz", x=a, b=b, y=y)
    with pytest.raises(InputError, match="'b', but only x, y"):
        load_model_data(tmp_path / "both.npz")
    np.savez(tmp_path / "nan.npz", a=a * np.nan, y=y)
    with pytest.raises(InputError, match=r"a in .* has 6 values"):
        load_model_data(tmp_path / "nan.npz")
