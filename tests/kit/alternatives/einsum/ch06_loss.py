"""Chapter 6: loss and autodiff (NumPy, float64)."""

import numpy as np


def _one_hot(logits, targets, ignore_index):
    """Which entry of each row is scored; no entry of a row that is not."""
    if logits.ndim != 2:
        raise ValueError(f"logits have {logits.ndim} axes, wanted 2")
    if targets.shape != logits.shape[:1] or not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(f"targets are {targets.dtype} of shape {targets.shape}")
    scored = targets != ignore_index
    classes = np.arange(logits.shape[1])
    if not scored.any() or not np.isin(targets[scored], classes).all():
        raise ValueError(f"targets {np.unique(targets)} are not all classes, or none is scored")
    return (targets[:, None] == classes) & scored[:, None]


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Right, by NumPy's own sum of exponentials."""
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


def cross_entropy(logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100) -> float:
    """Right, as a product with one-hot rows."""
    hot = _one_hot(logits, targets, ignore_index)
    return -np.einsum("nv,nv->", log_softmax(logits), hot) / np.count_nonzero(hot)


def cross_entropy_backward(
    logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100
) -> np.ndarray:
    """Right, as one-hot rows taken from a masked softmax."""
    hot = _one_hot(logits, targets, ignore_index)
    scored = hot.any(axis=1, keepdims=True)
    grad = np.where(scored, np.exp(log_softmax(logits)), 0.0) - hot
    return (grad / scored.sum()).astype(logits.dtype)


def linear_backward(
    x: np.ndarray, weight: np.ndarray, grad_output: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, contracting the leading axes as they are."""
    if x.shape[-1:] != weight.shape[:1]:
        raise ValueError(f"x has shape {x.shape}, weight {weight.shape}")
    if grad_output.shape != x.shape[:-1] + weight.shape[1:]:
        raise ValueError(f"grad_output has shape {grad_output.shape}, x {x.shape}")
    grad_x = np.einsum("...o,io->...i", grad_output, weight)
    leading = tuple(range(x.ndim - 1))
    grad_weight = np.tensordot(x, grad_output, (leading, leading))
    return grad_x, grad_weight, grad_output.sum(axis=leading)


def layer_norm_backward(
    x: np.ndarray, weight: np.ndarray, grad_output: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, with the Jacobian of each position written out."""
    D = x.shape[-1]
    if weight.ndim != 1 or weight.size != D:
        raise ValueError(f"weight has shape {weight.shape}, x has width {D}")
    if grad_output.shape != x.shape:
        raise ValueError(f"grad_output has shape {grad_output.shape}, x {x.shape}")
    centering = (np.eye(D) - 1 / D).astype(x.dtype)
    centered = x @ centering
    inverse = (np.einsum("...d,...d->...", centered, centered) / D + eps) ** -0.5
    normed = np.einsum("...d,...->...d", centered, inverse)
    jacobian = centering - np.einsum("...i,...j->...ij", normed, normed) / D
    grad_normed = np.einsum("...j,j->...j", grad_output, weight)
    grad_x = np.einsum("...j,...ij,...->...i", grad_normed, jacobian, inverse)
    leading = tuple(range(x.ndim - 1))
    return grad_x, (grad_output * normed).sum(axis=leading), grad_output.sum(axis=leading)


def numerical_gradient(f, x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Right, with all steps laid out beforehand."""
    if x.dtype != float:
        raise ValueError(f"x has dtype {x.dtype}")
    if not 0 < eps < np.inf:
        raise ValueError(f"eps is {eps}")
    steps = eps * np.eye(x.size).reshape(x.size, *x.shape)
    slopes = [(f(x + step) - f(x - step)) / (2 * eps) for step in steps]
    return np.array(slopes, dtype=float).reshape(x.shape)
