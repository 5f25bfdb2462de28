"""Trained networks of infinite width as scikit-learn's estimators, and their kernels for its Gaussian processes.

``network``          the network by parameters that can be searched, and its NNGP and NTK
``kernel_machines``  ``ft.NTKRegressor`` and ``ft.NTKClassifier``
``process_kernel``   ``ft.NTKKernel``, a covariance function of ``sklearn.gaussian_process``

Importing this package imports scikit-learn, and torch only where a torch module is given.
"""

from foretrain.support.errors import NotSupportedError

try:
    from sklearn.utils.validation import validate_data  # noqa: F401 - what older versions do not have
except ImportError as missing:
    raise NotSupportedError(
        "NTKRegressor, NTKClassifier and NTKKernel need scikit-learn 1.6 or newer: install it with "
        "`pip install 'foretrain[sklearn]'`."
    ) from missing

from foretrain.compare.estimators.kernel_machines import NTKClassifier, NTKRegressor
from foretrain.compare.estimators.process_kernel import NTKKernel

__all__ = ["NTKClassifier", "NTKKernel", "NTKRegressor"]
