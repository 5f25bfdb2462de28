"""Networks of infinite width trained by gradient descent: what they predict and how they generalize (chapter 10).

``GradientDescent``              mean and covariance after steps, after a time of the flow, or at the end; best rates
``cross_entropy_of_kernels``     the same for the cross-entropy, with soft labels or at a finite time
``sampled_prediction``           any other loss, for a number of steps or a time of the flow
``newton_step``, ``end_states``  other algorithms in function space, and that they end alike
``expected_loss``                bias, variance and fluctuation of any loss over networks
``one_training_input``           one training and one test input; ``nearby_training``, ``tangent_angles`` by layer
``robust_hyperparameters``       laws of robustness by universality class
``on_the_line``                  interpolation and extrapolation; ``tangent_series``, ``expanded_prediction``
``hidden_update``                how much the last hidden layer moves in one step, of order 1/width
"""

from foretrain.theory.prediction.algorithms import LearningRates
from foretrain.theory.prediction.infinite_width.few_inputs import (
    SCALE_INVARIANT_LIMITS,
    OneTrainingInput,
    RobustHyperparameters,
    TangentSeries,
    TwoOutputs,
    class_robustness,
    constant_rate_robustness,
    constant_rate_robustness_as_printed,
    expanded_mean_as_printed,
    expanded_prediction,
    linear_robustness,
    nearby_training,
    on_the_line,
    one_training_input,
    propagate_tangent,
    robust_hyperparameters,
    tangent_angles,
    tangent_series,
)
from foretrain.theory.prediction.infinite_width.gradient_descent import (
    GradientDescent,
    HiddenUpdate,
    Outputs,
    Update,
    end_states,
    generalized_squared_error,
    hidden_update,
    newton_step,
    newton_update,
    single_samples,
    train_outputs,
)
from foretrain.theory.prediction.infinite_width.losses import (
    CROSS_ENTROPY,
    SQUARED_ERROR,
    ExpectedLoss,
    Loss,
    SampledLoss,
    expected_loss,
    generalization_error,
    sampled_loss,
    smooth_labels,
)
from foretrain.theory.prediction.infinite_width.other_losses import (
    CrossEntropyPrediction,
    SampledPrediction,
    cross_entropy_end,
    cross_entropy_of_kernels,
    expected_cross_entropy,
    network_end,
    sampled_prediction,
    target_logits,
)
from foretrain.theory.prediction.kernels import OutputKernels, output_kernels
from foretrain.theory.prediction.predicted_outputs import Prediction

__all__ = [
    "CROSS_ENTROPY",
    "SCALE_INVARIANT_LIMITS",
    "SQUARED_ERROR",
    "CrossEntropyPrediction",
    "ExpectedLoss",
    "GradientDescent",
    "HiddenUpdate",
    "LearningRates",
    "Loss",
    "OneTrainingInput",
    "OutputKernels",
    "Outputs",
    "Prediction",
    "RobustHyperparameters",
    "SampledLoss",
    "SampledPrediction",
    "TangentSeries",
    "TwoOutputs",
    "Update",
    "class_robustness",
    "constant_rate_robustness",
    "constant_rate_robustness_as_printed",
    "cross_entropy_end",
    "cross_entropy_of_kernels",
    "end_states",
    "expanded_mean_as_printed",
    "expanded_prediction",
    "expected_cross_entropy",
    "expected_loss",
    "generalization_error",
    "generalized_squared_error",
    "hidden_update",
    "linear_robustness",
    "nearby_training",
    "network_end",
    "newton_step",
    "newton_update",
    "on_the_line",
    "one_training_input",
    "output_kernels",
    "propagate_tangent",
    "robust_hyperparameters",
    "sampled_loss",
    "sampled_prediction",
    "single_samples",
    "smooth_labels",
    "tangent_angles",
    "tangent_series",
    "target_logits",
    "train_outputs",
]
