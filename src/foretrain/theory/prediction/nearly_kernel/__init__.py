"""Nearly-kernel methods: quadratic models, how they are trained, and what they then predict (11.104)-(11.150).

``QuadraticModel``            from features and meta-features, or from kernel and meta-kernel
``preconditioned``            features in which a learning-rate tensor is one
``solve``                     the end of training in closed form, to first order in ε, for four algorithms
``train``                     the same algorithms really run; ``descend_in_sample_space`` needs kernels only
``order_of_error``            closed form beside training at several ε
``trained_kernels``           prediction by a kernel that training has moved
``NearlyKernelRegressor``     all of this with fit and predict
``counts``                    how many parameters and functions linear and quadratic models have
"""

from foretrain.theory.prediction.nearly_kernel.models import (
    FeatureModel,
    KernelModel,
    ModelCounts,
    QuadraticModel,
    counts,
    preconditioned,
)
from foretrain.theory.prediction.nearly_kernel.regressor import NearlyKernelRegressor
from foretrain.theory.prediction.nearly_kernel.solution import (
    ALGORITHMS,
    Projectors,
    SampleSpaceDescent,
    Solution,
    TrainedModel,
    descend_in_sample_space,
    one_sided_kernel,
    order_of_error,
    predict_as_printed,
    predict_one_sided,
    projectors,
    solve,
    spectrum,
    symmetric_kernel_as_printed,
    train,
)

__all__ = [
    "ALGORITHMS",
    "FeatureModel",
    "KernelModel",
    "ModelCounts",
    "NearlyKernelRegressor",
    "Projectors",
    "QuadraticModel",
    "SampleSpaceDescent",
    "Solution",
    "TrainedModel",
    "counts",
    "descend_in_sample_space",
    "one_sided_kernel",
    "order_of_error",
    "preconditioned",
    "predict_as_printed",
    "predict_one_sided",
    "projectors",
    "solve",
    "spectrum",
    "symmetric_kernel_as_printed",
    "train",
]
