from __future__ import annotations

import sys

import numpy as np
import pytest

from foretrain.support.errors import NotSupportedError
from foretrain.support.loading import handwritten_digits


def test_images_and_labels() -> None:
    pytest.importorskip("sklearn")
    images, labels = handwritten_digits()
    assert images.shape == (1797, 64)
    assert (images.min(), images.max()) == (0, 16)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_without_the_library_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(NotSupportedError, match="pip install scikit-learn"):
        handwritten_digits()
