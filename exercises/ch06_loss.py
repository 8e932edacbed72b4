"""Chapter 6: loss and autodiff (NumPy, float64).

The loss of a language model, its gradient, the two layers that gradient meets on its way back,
and the slow method that tells whether any of it is right.

Letters: N rows (B T positions, flattened), V vocabulary, D width, B batch, T tokens. A target
equal to ignore_index is not scored. grad_y is the gradient of one number, the loss, with respect
to y, and has y's shape.

Sources: Goodfellow, Bengio and Courville 2016, sections 4.1 (shifted exponentials) and 6.5
(back-propagation); Ba et al. 2016, arXiv:1607.06450 (layer norm); Griewank and Walther 2008
(reverse mode; central differences as its check).
"""

from collections.abc import Callable

import numpy as np


def check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Given: refuse an array of another shape; the message starts with its name."""
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")


def check_targets(logits: np.ndarray, targets: np.ndarray, ignore_index: int) -> None:
    """Given: refuse logits and targets that have no loss.

    Raises:
        ValueError: naming `logits` (not of shape (N, V)) or `targets`: not of shape (N,), not
            integers (floats, bools), none scored, or a scored one outside 0..V-1.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (N, V), got {logits.shape}; flatten B and T")
    N, V = logits.shape
    check_shape("targets", targets, (N,))
    if targets.dtype.kind not in "iu":  # signed or unsigned integers; bools are "b"
        raise ValueError(f"targets must be integers, got {targets.dtype}")
    scored = targets[targets != ignore_index]
    if scored.size == 0:
        raise ValueError(f"targets holds {N} rows and scores none; ignore_index is {ignore_index}")
    if scored.min() < 0 or scored.max() >= V:
        raise ValueError(
            f"targets must be in 0..{V - 1} or ignore_index ({ignore_index}), "
            f"got {scored.min()}..{scored.max()}"
        )


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Given: x @ weight + bias, (..., D_in) to (..., D_out); weight is (D_in, D_out).

    Example:
        >>> linear(np.array([1.0, 2.0]), np.array([[1.0, 2, 3], [4, 5, 6]]), np.ones(3)).tolist()
        [10.0, 13.0, 16.0]
    """
    return x @ weight + bias


def layer_norm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5
) -> np.ndarray:
    """Given: weight * (x - mean) / sqrt(var + eps) + bias over the last axis, var by 1/D.

    Example (mean 3, variance 4):
        >>> layer_norm(np.array([1.0, 1.0, 5.0, 5.0]), np.ones(4), np.zeros(4), eps=12.0).tolist()
        [-0.5, -0.5, 0.5, 0.5]
    """
    mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return weight * (x - mean) / np.sqrt(var + eps) + bias


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Turn logits into log-probabilities over the last axis.

    out[..., v] = x[..., v] - log(sum over u of exp(x[..., u]))

    Args:
        x: (..., V) float and finite, V at least 1, any leading axes or none; entries may be as
           large as +-1000.

    Returns:
        (..., V) in x's dtype, natural logarithms. `x` is not changed.

    Example (probabilities 1/4 and 3/4):
        >>> log_softmax(np.array([np.log(1), np.log(3)])).round(7).tolist()
        [-1.3862944, -0.2876821]
        >>> log_softmax(np.array([1000.0, 0.0])).tolist()
        [0.0, -1000.0]

    Always true:
        * exp(out) sums to 1 over the last axis, and no entry is above 0;
        * a number added to all entries of a row changes nothing;
        * log_softmax(log_softmax(x)) = log_softmax(x).
    """
    raise NotImplementedError("ch06 log_softmax")


def cross_entropy(logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100) -> float:
    """Average the surprise -log p(target) over the scored rows.

    loss = mean over scored n of -log_softmax(logits)[n, targets[n]]

    Args:
        logits:       (N, V) float and finite, not probabilities; may be as large as +-1000.
        targets:      (N,) integers of any width: 0..V-1, or ignore_index.
        ignore_index: a row whose target is this number is not scored: it adds nothing to the sum
                      or to the count. May be any integer, also one of 0..V-1; that class then
                      is never a target and still has its share of every row's probability.

    Returns:
        float, in nats. Neither argument is changed.

    Raises:
        ValueError: naming `logits` or `targets`; `check_targets` checks both.

    Example (log(1 + e^-2) and log(1 + e^2); the third row is not scored):
        >>> logits = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
        >>> round(cross_entropy(logits, np.array([0, 0, -100])), 7)
        1.126928

    Always true:
        * more rows that are not scored change nothing, whatever their logits;
        * equal logits cost log V, a single class costs 0, and no loss is below 0.
    """
    raise NotImplementedError("ch06 cross_entropy")


def cross_entropy_backward(
    logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100
) -> np.ndarray:
    """Give the gradient of `cross_entropy` with respect to the logits.

    out[n, v] = (p[n, v] - [v == targets[n]]) / number of scored rows,   p = softmax(logits)

    Args:
        logits:       (N, V) float, as they went into `cross_entropy`.
        targets:      (N,) integers, the same.
        ignore_index: the same.

    Returns:
        (N, V) in the logits' dtype. A row that is not scored is exactly 0. Neither argument is
        changed.

    Raises:
        ValueError: naming `logits` or `targets`, for what `cross_entropy` refuses.

    Example (probabilities 1/8, 2/8, 5/8; loss log 4 = 1.3862944):
        >>> logits = np.log([[1.0, 2.0, 5.0]])
        >>> cross_entropy_backward(logits, np.array([1])).round(7).tolist()
        [[0.125, -0.75, 0.625]]

    Always true:
        * each row sums to 0: probability only moves;
        * entries lie between -1 and 1, whatever the logits.
    """
    raise NotImplementedError("ch06 cross_entropy_backward")


def linear_backward(
    x: np.ndarray, weight: np.ndarray, grad_output: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the gradients of y = x @ weight + bias from the gradient of y.

    grad_x      = grad_output @ weight^T
    grad_weight = sum over all positions of x^T grad_output   (an outer product each)
    grad_bias   = sum over all positions of grad_output

    Args:
        x:           (..., D_in) float, any leading axes or none; a position is one index of them.
        weight:      (D_in, D_out) float.
        grad_output: (..., D_out) float, the loss's gradient with respect to y.

    Returns:
        grad_x (..., D_in), grad_weight (D_in, D_out) and grad_bias (D_out,), in this order, in
        x's dtype (all arguments have the same). Sums, not means. No argument is changed.

    Raises:
        ValueError: naming `x` (its last axis is not D_in) or `grad_output` (not of y's shape);
            `check_shape` checks one array.

    Example (one position):
        >>> x, weight = np.array([1.0, 2.0]), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> for grad in linear_backward(x, weight, np.array([1.0, 0.0, 10.0])):
        ...     print(grad.tolist())
        [31.0, 64.0]
        [[1.0, 0.0, 10.0], [2.0, 0.0, 20.0]]
        [1.0, 0.0, 10.0]

    Always true:
        * each gradient has the shape of what it is the gradient of;
        * (grad_x * x).sum() = (grad_weight * weight).sum() = (grad_output * (y - bias)).sum();
        * a weight of zeros gives a grad_x of zeros and the same grad_weight as any other.
    """
    raise NotImplementedError("ch06 linear_backward")


def layer_norm_backward(
    x: np.ndarray, weight: np.ndarray, grad_output: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the gradients of y = weight * x_hat + bias from the gradient of y.

    x_hat       = (x - mean) / sqrt(var + eps),   over the last axis, var = mean((x - mean)**2)
    g           = weight * grad_output
    grad_x      = (g - mean(g) - x_hat * mean(g * x_hat)) / sqrt(var + eps)
    grad_weight = sum over all positions of grad_output * x_hat
    grad_bias   = sum over all positions of grad_output

    Args:
        x:           (..., D) float, any leading axes or none; a position is one index of them.
        weight:      (D,) float, the scale. The bias is not needed.
        grad_output: (..., D) float, the loss's gradient with respect to y.
        eps:         as in the forward pass, inside the root.

    Returns:
        grad_x (..., D), grad_weight (D,) and grad_bias (D,), in this order, in x's dtype (all
        arguments have the same). Sums over positions, not means. No argument is changed.

    Raises:
        ValueError: naming `weight` (not of shape (D,)) or `grad_output` (not of x's shape);
            `check_shape` checks one array.

    Example (mean 3, var 4, root of 4 + 12 is 4, x_hat -0.5, -0.5, 0.5, 0.5; g = 16, 0, 0, 0):
        >>> x, weight = np.array([1.0, 1.0, 5.0, 5.0]), np.array([2.0, 1.0, 1.0, 1.0])
        >>> for grad in layer_norm_backward(x, weight, np.array([8.0, 0.0, 0.0, 0.0]), eps=12.0):
        ...     print(grad.tolist())
        [2.75, -1.25, -0.75, -0.75]
        [-4.0, 0.0, 0.0, 0.0]
        [8.0, 0.0, 0.0, 0.0]

    Always true:
        * grad_x sums to 0 over the last axis: a constant added to x changes no output;
        * positions do not see each other: grad_x at one depends on x and grad_output there.
    """
    raise NotImplementedError("ch06 layer_norm_backward")


def numerical_gradient(
    f: Callable[[np.ndarray], float], x: np.ndarray, eps: float = 1e-5
) -> np.ndarray:
    """Estimate the gradient of f at x by central differences, one entry at a time.

    out[i] = (f(x with x[i] + eps) - f(x with x[i] - eps)) / (2 eps)   for every index i

    Args:
        f:   takes an array of x's shape and gives a float; reads its argument and does not
             change it.
        x:   float64 of any shape and any memory layout; eps would be lost in fewer digits.
        eps: the step, above 0.

    Returns:
        float64 of x's shape. `x` is as it was, also if f raises; what f raises is passed on.

    Raises:
        ValueError: naming `x` (not float64; integers would cut the step off) or `eps` (not
            above 0).

    Example (x^3 at 1, 2 with a step of 0.5: ((x + 0.5)^3 - (x - 0.5)^3) / 1 = 3 x^2 + 0.25):
        >>> numerical_gradient(lambda x: (x**3).sum(), np.array([1.0, 2.0]), eps=0.5).tolist()
        [3.25, 12.25]

    Always true:
        * exact, but for rounding, where f is a polynomial of degree 2 at most in each entry;
        * f is called twice for each entry of x: this is a check, not a way to train.
    """
    raise NotImplementedError("ch06 numerical_gradient")
