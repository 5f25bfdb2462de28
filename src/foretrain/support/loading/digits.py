"""The handwritten digits that come with scikit-learn: 1797 images of 8 x 8 pixels."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import NotSupportedError


class Digits(NamedTuple):
    """Images (image, pixel) with values from 0 to 16, and the digits they show."""

    images: NDArray[np.float64]
    labels: NDArray[np.int64]


def handwritten_digits() -> Digits:
    """All of them; scikit-learn, which brings them, is asked for only here."""
    try:
        source = import_module("sklearn.datasets")
    except ImportError as error:
        raise NotSupportedError(
            "this needs the handwritten digits of scikit-learn: install it with `pip install scikit-learn`."
        ) from error
    images, labels = source.load_digits(return_X_y=True)
    return Digits(np.asarray(images, dtype=np.float64), np.asarray(labels, dtype=np.int64))
