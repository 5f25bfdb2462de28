"""Collective fields (Nordio 2026): which layer drives the residuals, through which geometry.

A feed-forward network is a chain v_l = W_l u_{l-1} + c_l, u_l = sigma_l(v_l) with a readout. Activations go forward,
conjugate fields b_l go back, and their overlaps make the tangent kernel of the outputs layer by layer,

    K = scale^2 sum_l (Q^{l-1} + 1 for a bias) * S^l,    Q = u . u,  S = z . z,  z = sigma'(v) * b     (172)

``fields``           all fields of a model, each computed when asked for; predictions and real steps
``simulate``         one hidden layer trained without weights, ``weight_training`` the same with them
``weight_free``      the object behind ``simulate``, to be stepped by hand
``record_fields``    layer contributions, spectra and alignment while a copy learns, ``FieldRecord`` draws it
``heavy_tail``       exponent of a spectrum's tail, ``tail_p_value`` whether a power law fits it
``effective_rank``   how many eigenvalues count: their participation ratio; ``entropy_rank`` by entropy
"""

from foretrain.empirical.fields.collective import Fields, fields
from foretrain.empirical.fields.one_hidden_layer import (
    WeightFreeNetwork,
    simulate,
    weight_free,
    weight_training,
)
from foretrain.empirical.fields.one_step import FirstOrderStep, StepReport
from foretrain.empirical.fields.record import FieldRecord, record_fields
from foretrain.empirical.fields.spectra import (
    HeavyTail,
    effective_rank,
    entropy_rank,
    heavy_tail,
    tail_p_value,
)

__all__ = [
    "FieldRecord",
    "Fields",
    "FirstOrderStep",
    "HeavyTail",
    "StepReport",
    "WeightFreeNetwork",
    "effective_rank",
    "entropy_rank",
    "fields",
    "heavy_tail",
    "record_fields",
    "simulate",
    "tail_p_value",
    "weight_free",
    "weight_training",
]
