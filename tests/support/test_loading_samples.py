from pathlib import Path

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.support.loading import load_samples


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
