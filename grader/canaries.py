"""Checks that must fail. The child runs them after the last test; one that passes shows that the
learner's file changed what judges it."""

CANARIES = ("values", "shapes", "refusal", "assertion")


def run(name: str):
    import numpy as np
    import pytest

    from grader import checks

    match name:
        case "values":
            checks.assert_close(np.zeros(2), [0.0, 1.0], "canary")
        case "shapes":
            checks.assert_close(np.zeros(2), np.zeros(3), "canary")
        case "refusal":
            checks.refuses(ValueError, "canary", lambda: None)
        case "assertion":
            pytest.fail("canary")
