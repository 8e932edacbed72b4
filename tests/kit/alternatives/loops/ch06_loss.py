"""Chapter 6: loss and autodiff (NumPy, float64)."""

import math

import numpy as np


def _log_shares(row):
    """The log-probabilities of one row, as a list."""
    top = max(row)
    mass = 0.0
    for z in row:
        mass += math.exp(z - top)
    return [z - top - math.log(mass) for z in row]


def _scored(logits, targets, ignore_index):
    """Pairs of a row's number and its class, of the rows that count."""
    if len(np.shape(logits)) != 2:
        raise ValueError("logits: wanted one row per position, one column per class")
    rows, classes = logits.shape
    if targets.shape != (rows,):
        raise ValueError(f"targets: wanted {rows} of them along one axis")
    pairs = []
    for n, target in enumerate(targets.tolist()):
        if type(target) is not int:
            raise ValueError(f"targets: {target} is no whole number")
        if target == ignore_index:
            continue
        if target not in range(classes):
            raise ValueError(f"targets: {target} is not one of the {classes} classes")
        pairs.append((n, target))
    if not pairs:
        raise ValueError("targets: nothing to score")
    return pairs


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Right, in plain loops."""
    out = np.empty_like(x)
    for position in np.ndindex(x.shape[:-1]):
        out[position] = _log_shares([float(z) for z in x[position]])
    return out


def cross_entropy(logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100) -> float:
    """Right, in plain loops."""
    pairs = _scored(logits, targets, ignore_index)
    total = 0.0
    for n, target in pairs:
        total -= _log_shares([float(z) for z in logits[n]])[target]
    return total / len(pairs)


def cross_entropy_backward(
    logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100
) -> np.ndarray:
    """Right, in plain loops."""
    pairs = _scored(logits, targets, ignore_index)
    out = np.zeros(logits.shape, dtype=logits.dtype)
    for n, target in pairs:
        for v, log_share in enumerate(_log_shares([float(z) for z in logits[n]])):
            wanted = 1.0 if v == target else 0.0
            out[n, v] = (math.exp(log_share) - wanted) / len(pairs)
    return out


def linear_backward(
    x: np.ndarray, weight: np.ndarray, grad_output: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, in plain loops."""
    inputs, outputs = weight.shape
    if len(x.shape) == 0 or x.shape[-1] != inputs:
        raise ValueError(f"x: wanted {inputs} features at each position")
    leading = x.shape[:-1]
    if grad_output.shape != leading + (outputs,):
        raise ValueError(f"grad_output: wanted {outputs} features at each position of x")
    grad_x = np.zeros(x.shape, x.dtype)
    grad_weight = np.zeros(weight.shape, x.dtype)
    grad_bias = np.zeros(outputs, x.dtype)
    for position in np.ndindex(leading):
        for o in range(outputs):
            g = grad_output[position][o]
            grad_bias[o] += g
            for i in range(inputs):
                grad_x[(*position, i)] += g * weight[i, o]
                grad_weight[i, o] += g * x[position][i]
    return grad_x, grad_weight, grad_bias


def layer_norm_backward(
    x: np.ndarray, weight: np.ndarray, grad_output: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, in plain loops: through variance and mean, one after the other."""
    width = x.shape[-1]
    if weight.shape != (width,):
        raise ValueError(f"weight: wanted {width} scales")
    if grad_output.shape != x.shape:
        raise ValueError("grad_output: wanted one entry for each of x")
    grad_x = np.zeros(x.shape, x.dtype)
    grad_weight, grad_bias = np.zeros(width, x.dtype), np.zeros(width, x.dtype)
    for position in np.ndindex(x.shape[:-1]):
        row = [float(value) for value in x[position]]
        upstream = [float(value) for value in grad_output[position]]
        mean = sum(row) / width
        centered = [value - mean for value in row]
        root = math.sqrt(sum(c * c for c in centered) / width + eps)
        grad_normed = [g * float(w) for g, w in zip(upstream, weight, strict=True)]
        grad_root = 0.0
        for g, c in zip(grad_normed, centered, strict=True):
            grad_root -= g * c / root**2
        grad_variance = grad_root / (2 * root)
        grad_centered = []
        for g, c in zip(grad_normed, centered, strict=True):
            grad_centered.append(g / root + grad_variance * 2 * c / width)
        grad_mean = -sum(grad_centered)
        for d in range(width):
            grad_x[(*position, d)] = grad_centered[d] + grad_mean / width
            grad_weight[d] += upstream[d] * centered[d] / root
            grad_bias[d] += upstream[d]
    return grad_x, grad_weight, grad_bias


def numerical_gradient(f, x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Right, in place, and put back whatever happens."""
    if x.dtype.name != "float64":
        raise ValueError(f"x: wanted float64, not {x.dtype}")
    if math.isnan(eps) or eps <= 0:
        raise ValueError(f"eps: {eps} is no step")
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        old = float(x[index])
        try:
            x[index] = old + eps
            above = float(f(x))
            x[index] = old - eps
            below = float(f(x))
        finally:
            x[index] = old
        out[index] = (above - below) / 2 / eps
    return out
