"""The losses of a fit, with the weights that minimise them by iteratively reweighted least squares
(IRLS).

A measured value has a Student-t loss, and a bound on a value a logistic one: a run that fitted into
memory needed at most what the device has. Everything here is elementwise over the targets of a fit,
the values and bounds that predictions are to meet. Residuals and distances are those of log
predictions. `weight` is the number of runs that a target counts for, and `noise` the standard
deviation expected of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array

# The degrees of freedom of the Student-t distribution. With 4, a residual of five spreads pulls on
# the fit less than one of two spreads does. From 1 to 8 the errors after a few reports are within
# 0.2 points of each other, and with normal tails 1.1 points worse (docs/lab/calibration.md).
DEGREES_OF_FREEDOM = 4.0
# The scale of the logistic distribution whose standard deviation is 1.
_LOGISTIC_SCALE = 3**0.5 / np.pi
# Violations, in widths, are clipped here, before exp() of them overflows or loses all digits.
_LARGEST_VIOLATION = 30.0
# Below this violation tanh(x / 2) / x is 0 / 0 to rounding.
_SMALLEST_VIOLATION = 1e-6
# The logistic loss at which a violated bound's pull has halved: a run so many widths on the wrong
# side is likelier to be misreported than informative.
_GROSS_LOSS = 3.0


def student_t_loss(residual: Array, noise: Array) -> Array:
    """Return -2 log of the Student-t density, up to a constant."""
    nu = DEGREES_OF_FREEDOM
    return np.asarray((nu + 1) * np.log1p((residual / noise) ** 2 / nu))


def student_t_weight(residual: Array, weight: Array, noise: Array) -> Array:
    """Return the weights of squared residuals. Weighted least squares, repeated with the weights of
    its own residuals, ends at the minimum of the Student-t loss (Lange, Little and Taylor 1989,
    Robust statistical modeling using the t distribution)."""
    # Small residuals weigh like least squares, by 1 / noise². Large ones weigh by 1 / residual².
    nu = DEGREES_OF_FREEDOM
    return np.asarray(weight * (nu + 1) / (nu + (residual / noise) ** 2) / noise**2)


@dataclass(frozen=True, slots=True)
class BoundLoss:
    """The loss of predictions that should lie on one side of a bound, as in a logistic regression.

    With l = log(1 + exp(violation)) the logistic loss and c a constant, a target's loss is 2c log(1
    + l / c). A one-sided square would say the same of ten runs that failed where their prediction
    just fits as of one. A plain logistic loss would let one run that failed for another reason, far
    from its bound, carry the fit.

    `sign` is 1 where a prediction should be at least the bound, and -1 where it should be at most
    the bound. `width` is the scale of the logistic distribution. `violation` is the distance of a
    prediction beyond its bound in widths, and negative on the right side.
    """

    sign: Array
    width: Array
    violation: Array

    @classmethod
    def of(cls, sign: Array, distance: Array, noise: Array) -> BoundLoss:
        """Return the loss of predictions. `distance` is the log of the bound less that of the
        prediction."""
        # The scale at which a logistic distribution has the standard deviation `noise`.
        width = noise * _LOGISTIC_SCALE
        limit = _LARGEST_VIOLATION  # beyond it, exp() overflows or loses all digits
        return cls(sign, width, np.clip(sign * distance / width, -limit, limit))

    def loss(self) -> Array:
        """Return the losses 2c log(1 + l / c), with the logistic losses l; shape (targets,)."""
        logistic = np.logaddexp(0.0, self.violation)
        # The outer logarithm keeps one misreported run from carrying the fit.
        return np.asarray(2 * _GROSS_LOSS * np.log1p(logistic / _GROSS_LOSS))

    def irls_residual(self) -> Array:
        """Return the residuals with which weighted least squares, with `irls_weight`, step towards
        the minimum of the loss: its slope over the curvature of a parabola (`_majorant`)."""
        return np.asarray(self.sign * self.width * self._wrong_probability() / self._majorant())

    def irls_weight(self, weight: Array) -> Array:
        """Return the IRLS weights that go with `irls_residual`; shape (targets,)."""
        return np.asarray(weight * self._damping() * self._majorant() / self.width**2)

    def information(self, weight: Array) -> Array:
        """Return the curvature of the loss, with the factor `_damping`, which weakens gross
        violations, taken as constant. It says how much each target tells of its prediction."""
        wrong = self._wrong_probability()
        return np.asarray(weight * self._damping() * wrong * (1 - wrong) / self.width**2)

    def _wrong_probability(self) -> Array:
        """Return the probability that the prediction gives to the side on which the run was not. It
        is the slope of the logistic loss."""
        return np.asarray(1 / (1 + np.exp(-self.violation)))

    def _damping(self) -> Array:
        """Return the factor by which the outer logarithm lowers the slope of the logistic loss."""
        return np.asarray(1 / (1 + np.logaddexp(0.0, self.violation) / _GROSS_LOSS))

    def _majorant(self) -> Array:
        """Return the curvature of a parabola that touches the logistic loss. On the wrong side the
        loss's own curvature vanishes, and Newton's step would go too far. There the parabola is the
        one that lies above the loss everywhere (Jaakkola and Jordan 2000,
        doi:10.1023/A:1008932416310)."""
        wrong = self._wrong_probability()
        above = np.tanh(self.violation / 2) / (2 * np.maximum(self.violation, _SMALLEST_VIOLATION))
        return np.where(self.violation > _SMALLEST_VIOLATION, above, wrong * (1 - wrong))
