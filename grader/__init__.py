"""The grader: runs a chapter's tests on a learner's file, names known mistakes, reports."""


class UsageError(Exception):
    """Wrong usage, told in one sentence; the command line exits with 2."""


class EnvironmentProblem(Exception):
    """The machine lacks something, told in one sentence; the command line exits with 3."""
