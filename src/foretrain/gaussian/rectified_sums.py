"""Means of h = relu(relu(u) + v), u and v independent zero-mean Gaussians: the residual block that ends in a ReLU.

At one point h is a function of x = u / sqrt(a) and y = v / sqrt(b), linear between three kinks: u = 0 (where v > 0),
w = u + v = 0 (where u > 0) and v = 0 (where u < 0). Integration by parts, twice, leaves only what happens on kinks
i of the first point and j of the second:

    E[h h'] = K_u weight_u + K_v weight_v + sum_ij l_i l_j sqrt(1 - r_ij^2) angle_ij / 4 pi^2.

Here l = sqrt(a), sqrt(a + b), sqrt(b) are the deviations of u, w, v; r_ij is the correlation of such a variable with
one of the other point; angle_ij / 2 pi is the probability that both points lie on their halves of the lines i and j,
given that they lie on the lines. The weights need P(u, w, u', w' > 0) and the same of v in place of u, since h = 0
where v, w <= 0: four-dimensional, but by Plackett's identity its derivative in the correlation of v is elementary, a
single angle_ww, and at correlation +-1 of v it is the area of a spherical quadrilateral. So each of the two
probabilities is an area and an integral over one arctangent; everything else is elementary.

Reference: architectures.md, section 4, "Post-activation residual".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import difference_of_products
from foretrain.gaussian.nodes import gauss_legendre
from foretrain.support.errors import InputError

Array = NDArray[np.float64]

_BLOCK = 16384  # pairs at a time: enough to be worth a call of numpy, few enough to stay near the processor
# Stands for 0, far below what float64 tells apart, so that parallel pairs need no case of their own.
_SMALLEST_SINE = 1e-30
_LARGEST = 1e280  # product of two variances whose exact determinant does not overflow
_TOLERANCE = 1e-8  # how far rounding may take a covariance beyond the root of its variances
# Numbers of quadrature nodes, and the longest path for which each converges: branch points are pi/2 off the path.
_RUNGS = np.array([6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256])
_LONGEST = math.pi / np.sinh(16 / _RUNGS)


class RectifiedSum(NamedTuple):
    """Means over both fields for every pair of points; the gains are None unless they were asked for."""

    second_moment: Array  # E[h h']
    weight_u: Array  # of Theta_u: E[1(u > 0) 1(u' > 0) 1(h > 0) 1(h' > 0)]
    weight_v: Array  # of Theta_v: E[1(h > 0) 1(h' > 0)]
    gain_u: Array | None  # of the gain rate of u: E[u u' 1(u > 0) 1(u' > 0) 1(h > 0) 1(h' > 0)]
    gain_v: Array | None  # of the gain rate of v: E[v v' 1(h > 0) 1(h' > 0)]


def rectified_sum_mean(u_variance: ArrayLike, v_variance: ArrayLike) -> Array:
    """E[h] at single points: (sqrt(a) + sqrt(b) + sqrt(a + b)) / sqrt(8 pi) for the variances a, b of u, v."""
    a, b = np.asarray(u_variance, dtype=np.float64), np.asarray(v_variance, dtype=np.float64)
    if not ((a >= 0) & (b >= 0) & (a + b < math.inf)).all():
        raise InputError("variances must be finite numbers from 0 on: check the inputs they came from.")
    return np.asarray((np.sqrt(a) + np.sqrt(b) + np.sqrt(a + b)) / math.sqrt(8 * math.pi))


def rectified_sum(
    u_rows: ArrayLike,
    u_columns: ArrayLike,
    u_covariance: ArrayLike,
    v_rows: ArrayLike,
    v_columns: ArrayLike,
    v_covariance: ArrayLike,
    *,
    gains: bool = False,
) -> RectifiedSum:
    """The means of h h' and the weights of both tangent kernels for pairs of points.

    Parameters
    ----------
    u_rows, u_columns, u_covariance
        Variances of u at the first and at the second point of each pair, and their covariance.
    v_rows, v_columns, v_covariance
        The same of v. All six broadcast against each other.
    gains
        Whether to return the weights of gain rates, too.

    Errors are a few 1e-16, at most 1e-14, of the natural sizes: sqrt((a + b)(a' + b')) of the second moment, 1 of
    the weights, sqrt(a a') and sqrt(b b') of the gains. Pairs may be parallel or opposite in one field or in both;
    an angle counts as long as the covariance tells it from zero. Variances are 0 or between 1e-130 and 1e130.

    A field without variance at a point is the limit of small noise that is independent of all else, also of the
    other point: 1(0 > 0) is 1/2 on average, as for ReLU in :func:`foretrain.gaussian.cross_gram`. Where both fields
    vanish, their noises are of one size. Such a point paired with itself looks like two such points.

    It takes about a microsecond per pair on one core, two or three where one field is far more parallel than the
    other, and less than 10 MB beside the results, however many pairs there are.
    """
    given = (u_rows, u_columns, u_covariance, v_rows, v_columns, v_covariance)
    views = np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in given))
    shape, size = views[0].shape, views[0].size
    results = np.empty((5 if gains else 3, size))
    for start in range(0, size, _BLOCK):
        block = slice(start, start + _BLOCK)
        results[:, block] = _block([view.flat[block] for view in views], gains)
    second_moment, weight_u, weight_v, *rest = (result.reshape(shape) for result in results)
    gain_u, gain_v = rest if gains else (None, None)
    return RectifiedSum(second_moment, weight_u, weight_v, gain_u, gain_v)


class _Field(NamedTuple):
    """The correlation of one field over pairs of points, as an angle that keeps its digits near 0 and pi."""

    cosine: Array
    sine: Array  # positive
    angle: Array
    low: Array  # (1 - cosine) / 2
    high: Array  # (1 + cosine) / 2


class _Wedge(NamedTuple):
    """The event x > 0 and w > 0 at both points, where x is one field, y the other and w = s x + c y."""

    x: _Field
    y: _Field
    s: tuple[Array, Array]  # at the first and at the second point
    c: tuple[Array, Array]
    tilt: Array  # the angles of (c, s), added over the two points
    apart: Array  # squared sine of half their difference


class _Path(NamedTuple):
    """What the angle of the lines w = 0 and w' = 0 depends on while y turns from +-y' to its place."""

    near: Array  # (1 -+ r) / 2 for the correlation r of w and w', at the start
    far: Array  # (1 +- r) / 2, at the start, less the share
    share: Array  # c c'
    cosine: Array  # of x
    sine: Array
    lift: Array  # +- s s' sine^2


class _Edges(NamedTuple):
    """sqrt(1 - r^2) times the angle, for a line of the first and a line of the second point."""

    x_and_x: Array
    x_and_w: Array
    w_and_x: Array


def _block(pairs: list[Array], gains: bool) -> list[Array]:
    """All means of a block of pairs, in the order of :class:`RectifiedSum`."""
    a, a2, u_covariance, b, b2, v_covariance = pairs
    u, v = _correlate(a, a2, u_covariance), _correlate(b, b2, v_covariance)
    (s, c), (s2, c2) = _shares(a, b), _shares(a2, b2)
    tilt = np.arctan2(s, c) + np.arctan2(s2, c2)
    apart = (s * c2 - c * s2) ** 2 / (2 * (1 + c * c2 + s * s2))
    of_u = _Wedge(u, v, (s, s2), (c, c2), tilt, apart)
    of_v = _Wedge(v, u, (c, c2), (s, s2), math.pi - tilt, apart)

    # h = 0 where v < 0 and w < 0; changing all signs at once turns that into a wedge of v.
    weight_u = _probability(of_u)
    weight_v = tilt / (2 * math.pi) + _probability(of_v)

    edges_u, edges_v = _edges(of_u), _edges(of_v)
    angle, root = _angle_of_sums(_path(of_u), _half_tangent(v))
    total = (s * c2 + c * s2) * (math.pi / 2) + root * angle
    for (first, second), edges in (((s, s2), edges_u), ((c, c2), edges_v)):
        total += first * second * edges.x_and_x + first * edges.x_and_w + second * edges.w_and_x
    second_moment = s * s2 * u.cosine * weight_u + c * c2 * v.cosine * weight_v + total / (4 * math.pi**2)
    second_moment *= np.sqrt(a + b) * np.sqrt(a2 + b2)
    if not gains:
        return [second_moment, weight_u, weight_v]

    gain_u = _gain(of_u, edges_u, weight_u, angle / root)
    gain_v = _gain(of_v, edges_v, weight_v, angle / root) - v.cosine * (s * c + s2 * c2) / (2 * math.pi)
    return [second_moment, weight_u, weight_v, gain_u * np.sqrt(a * a2), gain_v * np.sqrt(b * b2)]


def _correlate(rows: Array, columns: Array, covariance: Array) -> _Field:
    """The correlation from variances and covariance; none where a variance is zero."""
    product = rows * columns
    root = np.sqrt(np.maximum(product, 0.0))
    sound = (rows >= 0) & (columns >= 0) & (product <= _LARGEST)
    if not (sound & (np.abs(covariance) <= root * (1 + _TOLERANCE))).all():
        raise InputError(
            "variances must be finite numbers from 0 on, and no covariance may exceed the root of its two "
            "variances: check the inputs they came from."
        )
    alive = product > 0
    safe = np.where(alive, root, 1.0)
    cosine = np.clip(covariance / safe, -1.0, 1.0)
    # The exact determinant keeps the digits of small angles.
    determinant = np.maximum(difference_of_products(rows, columns, covariance, covariance), 0.0)
    sine = np.where(alive, np.maximum(np.sqrt(determinant) / safe, _SMALLEST_SINE), 1.0)
    # (1 - |cosine|) / 2 and (1 + |cosine|) / 2 without cancellation.
    wide = (1 + np.abs(cosine)) / 2
    narrow = sine**2 / (4 * wide)
    positive = cosine > 0
    low, high = np.where(positive, narrow, wide), np.where(positive, wide, narrow)
    return _Field(cosine, sine, np.arctan2(sine, cosine), low, high)


def _shares(a: Array, b: Array) -> tuple[Array, Array]:
    """The deviations of u and of v at a point in units of that of u + v; equal ones where both are zero."""
    total = a + b
    alive = total > 0
    safe = np.where(alive, total, 1.0)
    return np.sqrt(np.where(alive, a / safe, 0.5)), np.sqrt(np.where(alive, b / safe, 0.5))


def _half_tangent(field: _Field) -> Array:
    """Tangent of half the angle that parts the field from parallel or opposite, whichever is nearer."""
    return np.asarray(field.sine / (1 + np.abs(field.cosine)))


def _path(wedge: _Wedge) -> _Path:
    """The path from y = y' if y is positively correlated, else from y = -y'."""
    x, (s, s2), (c, c2) = wedge.x, wedge.s, wedge.c
    parallel = wedge.y.cosine > 0
    near = wedge.apart + s * s2 * np.where(parallel, x.low, x.high)
    far = wedge.apart + s * s2 * np.where(parallel, x.high, x.low)
    lift = np.where(parallel, 1.0, -1.0) * s * s2 * x.sine**2
    return _Path(near, far, c * c2, x.cosine, x.sine, lift)


def _angle_of_sums(path: _Path, t: Array) -> tuple[Array, Array]:
    """The angle of the lines w = 0 and w' = 0 and sqrt(1 - r^2), where the half tangent of y on its path is t."""
    near, far, share, cosine, sine, lift = path
    square = t * t
    height = np.sqrt((near + (near + share) * square) * ((far + share) + far * square))
    along = 4 * cosine * share * square + lift * (1 - square * square)
    return np.arctan2(4 * sine * t * height, -along), 2 * height / (1 + square)


def _probability(wedge: _Wedge) -> Array:
    """The probability of a wedge: its value at the start of the path, and Plackett's integral along it."""
    x, path = wedge.x, _path(wedge)
    # Areas of spherical quadrilaterals: their sides in turn are x, w, w', x' if y = y', and x, w', x', w if y = -y'.
    parallel_area = math.pi - x.angle - 2 * np.arctan2(np.sqrt(path.near), np.sqrt(path.far + path.share))
    opposite_area = sum(
        np.arctan2(x.cosine * s, np.sqrt(c**2 + (s * x.sine) ** 2)) for s, c in zip(wedge.s, wedge.c)
    )
    parallel = wedge.y.cosine > 0
    area = wedge.tilt + np.where(parallel, parallel_area, opposite_area)
    integral = _path_integral(wedge, path) / math.pi
    return np.asarray(np.maximum(area - np.where(parallel, integral, -integral), 0.0) / (4 * math.pi))


def _path_integral(wedge: _Wedge, path: _Path) -> Array:
    """The integral of the angle of w = 0 and w' = 0 over arccos(+-r), along the path.

    In terms of the half tangent t of y all branch points are imaginary. With t = scale sinh(position), the scale
    being the nearest of them, none comes nearer than pi/2 to the path: Gauss's rule converges geometrically.
    """
    end = _half_tangent(wedge.y)
    by_root = np.sqrt(path.near / (path.near + path.share))
    scale = np.where(by_root > 1e-17, by_root, 1.0)
    for s, c in zip(wedge.s, wedge.c):
        rise = s * wedge.x.sine
        by_angle = rise / (c + np.sqrt(c**2 + rise**2))
        # What happens nearer to 0 weighs the square of its distance, or its distance if the root is as near.
        scale = np.where(by_angle > 1e-9 * np.sqrt(by_root), np.minimum(scale, by_angle), scale)
    reach = np.arcsinh(end / scale)
    rungs = np.searchsorted(_LONGEST, reach)
    total = np.zeros_like(reach)
    rows = np.stack([*path, scale, reach])
    for rung in np.unique(rungs):
        members = np.flatnonzero(rungs == rung)
        *chosen, nearest, length = rows[:, members]
        part = np.zeros(len(members))
        for position, weight in zip(*gauss_legendre(int(_RUNGS[rung]))):
            t = nearest * np.sinh(position * length)
            angle, root = _angle_of_sums(_Path(*chosen), t)
            part += weight * angle * t * np.sqrt(nearest**2 + t**2) / ((1 + t**2) ** 2 * root)
        total[members] = 4 * _Path(*chosen).share * length * part
    return total


def _edges(wedge: _Wedge) -> _Edges:
    """The edges of a wedge, but for that of w and w'."""
    x, y = wedge.x, wedge.y
    with_w = []
    for s, c in zip(wedge.s, wedge.c):
        root = np.sqrt(c**2 + (s * x.sine) ** 2)
        with_w.append(root * (math.pi / 2 - np.arctan2(y.cosine * x.sine * s, y.sine * root)))
    return _Edges(x.sine * (math.pi - y.angle), x_and_w=with_w[1], w_and_x=with_w[0])


def _gain(wedge: _Wedge, edges: _Edges, weight: Array, angle_over_root: Array) -> Array:
    """E[x x' 1] on a wedge of the given weight, x having unit variance: by parts, as the second moment."""
    x, y, (s, s2), (c, c2) = wedge.x, wedge.y, wedge.s, wedge.c
    total = edges.x_and_x + s * edges.w_and_x + s2 * edges.x_and_w
    # Where x = y = 0 at one point, the other lies in its wedge with the probability 1/4 + opening / 2 pi.
    for here, beyond in (((s, c), (s2, c2)), ((s2, c2), (s, c))):
        opening = np.arctan2(x.sine * beyond[0], y.sine * beyond[1])
        total += x.cosine * here[0] * here[1] * (math.pi / 2 + opening)
    # The line w = 0 with the line w' = 0; no term cancels another where the two are nearly one.
    sum_cosine, difference_cosine = c * c2 - s * s2, c * c2 + s * s2
    corner = 2 * (x.low * y.high + x.high * y.low) * c * c2 * (s**2 + s2**2)
    corner -= sum_cosine * ((s * c2 - c * s2) ** 2 + s * s2 * x.sine**2 * difference_cosine)
    return np.asarray(x.cosine * weight + (total + corner * angle_over_root) / (4 * math.pi**2))
