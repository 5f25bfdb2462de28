"""Really trained ensembles of finite networks beside the predictions for them.

``compare_trained``   mean and covariance of trained outputs at several widths beside the prediction
``compare_trained_finite``  the same beside the prediction to order 1/n, split by origin; posteriors too
``train_ensemble``    many random networks trained together: outputs, tangent kernels, linearised ends
``draw_ensemble``     the same networks before training
``Training``          what is learned and how
"""

from foretrain.compare.trained.comparison import TrainedComparison, compare_trained
from foretrain.compare.trained.ensemble import (
    InitialEnsemble,
    TrainedEnsemble,
    draw_ensemble,
    train_ensemble,
)
from foretrain.compare.trained.finite import FiniteComparison, compare_trained_finite
from foretrain.compare.trained.training import Training

__all__ = [
    "FiniteComparison",
    "InitialEnsemble",
    "TrainedComparison",
    "TrainedEnsemble",
    "Training",
    "compare_trained",
    "compare_trained_finite",
    "draw_ensemble",
    "train_ensemble",
]
