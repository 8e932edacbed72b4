"""Exercises stand alone, and a failing test names a known mistake."""

import re

import pytest

from grader import source
from grader.chapters import find_chapter
from grader.runner import Job, run
from submissions import (
    CHAPTER,
    POOLED,
    SOLUTION,
    STUB,
    changed,
    in_mean_pool,
    judged,
    messages,
    statuses,
)

pytestmark = pytest.mark.timeout(60)
NAMES = [exercise.name for exercise in CHAPTER.exercises]


def with_answer_of(exercise: str) -> str:
    """The stub with one answer written in."""
    answer = next(a for a in source.answers(SOLUTION, CHAPTER.file) if a.name == exercise)
    body = "\n".join(SOLUTION.splitlines()[answer.start : answer.end])
    raising = f'    raise NotImplementedError("ch11 {exercise}")'
    return changed(raising, body, STUB)


@pytest.mark.parametrize("exercise", NAMES)
def test_one_answer_alone_turns_its_own_tests_green(tmp_path, exercise):
    result = judged(tmp_path, with_answer_of(exercise))
    assert statuses(result) == dict.fromkeys(NAMES, "not started") | {exercise: "done"}
    assert result.status == "in progress"


def test_a_wrong_mean_pool_does_not_fail_classify(tmp_path):
    result = judged(tmp_path, changed(POOLED, "hidden.mean(axis=1)"))
    assert statuses(result) == dict.fromkeys(NAMES, "done") | {"mean_pool": "wrong"}
    assert [test.outcome for test in result.together] == ["not started"]
    assert result.together[0].message == "waits for mean_pool"
    assert result.status == "wrong"


def test_the_file_as_written_is_judged_when_its_parts_pass(tmp_path):
    # classify leaves a trace that this file's own mean_pool trips over: each is right alone
    text = changed(
        "    _, hidden, _ = forward(", "    TRACE.append(1)\n    _, hidden, _ = forward("
    )
    text = changed(POOLED, f"{POOLED} * (2 if TRACE else 1)", text) + "\nTRACE = []\n"
    result = judged(tmp_path, text)
    assert statuses(result) == dict.fromkeys(NAMES, "done")
    assert [test.outcome for test in result.together] == ["wrong"]
    assert result.status == "wrong"


def diagnosed(result, exercise):
    tests = next(row for row in result.exercises if row.exercise.name == exercise).tests
    return {identity for test in tests for identity in test.diagnosis}


def test_a_known_mistake_is_named(tmp_path):
    result = judged(tmp_path, changed("/ lengths[:, None]  # (B, D)", "/ hidden.shape[1]"))
    assert diagnosed(result, "mean_pool") == {"divides-by-padded-length"}


def test_a_known_mistake_written_another_way_is_named(tmp_path):
    # the mean over T of masked values is the sum over T divided by the padded length
    result = judged(tmp_path, changed(POOLED, "np.where(valid[..., None], hidden, 0).mean(axis=1)"))
    assert diagnosed(result, "mean_pool") == {"divides-by-padded-length"}


def test_an_unknown_mistake_is_not_named(tmp_path):
    result = judged(tmp_path, changed(POOLED, f"1.5 * {POOLED}"))
    assert statuses(result)["mean_pool"] == "wrong"
    assert diagnosed(result, "mean_pool") == set()


def test_a_mistake_that_gives_nothing_to_compare_is_not_named(tmp_path):
    for answer in ("None", "np.zeros((len(hidden), hidden.shape[2]))", "POOLED * np.nan"):
        result = judged(tmp_path, changed(POOLED, answer.replace("POOLED", POOLED)))
        assert statuses(result)["mean_pool"] == "wrong"
        assert diagnosed(result, "mean_pool") == set()


def test_without_a_mask_only_the_missing_mask_is_named(tmp_path):
    # zero queries make "no mask" and "blocked scores are zero" alike in one test, not in all
    result = judged(tmp_path, changed("scores = np.where(blocked, -np.inf, scores)", "pass"))
    assert diagnosed(result, "forward") == {"attends-both-ways"}


def test_the_smallest_input_that_breaks_is_shown(tmp_path):
    result = judged(tmp_path, changed("/ lengths[:, None]  # (B, D)", "/ hidden.shape[1]"))
    said = messages(result, "mean_pool")
    assert "the smallest input that breaks: lengths=[1], width=1, extra=1" in said


def test_diagnosis_keeps_quiet_when_it_takes_too_long(tmp_path, monkeypatch):
    slow = in_mean_pool("import grader.diagnosis; grader.diagnosis.SECONDS = -1")
    result = judged(tmp_path, changed("/ lengths[:, None]  # (B, D)", "/ hidden.shape[1]", slow))
    assert statuses(result)["mean_pool"] == "wrong"
    assert diagnosed(result, "mean_pool") == set()


def test_names_that_pytest_would_mangle_stay_plain(tmp_path):
    result = judged(tmp_path, SOLUTION)
    ids = [test.id for test in result.tests]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"test_\w+(\[.+\])?", identity) for identity in ids)


def test_a_forgotten_check_does_not_hide_a_wrong_number(tmp_path):
    text = changed("/ lengths[:, None]  # (B, D)", "/ hidden.shape[1]")
    text = text.replace(
        "    lengths = valid_lengths(hidden, pooling_mask)\n    valid",
        "    lengths = np.asarray(pooling_mask).sum(axis=1)\n    valid",
    )
    result = judged(tmp_path, text)
    assert "divides-by-padded-length" in diagnosed(result, "mean_pool")


def test_a_forbidden_call_is_wrong_with_its_line(tmp_path):
    chapter = find_chapter("2")
    text = chapter.solution.read_text(encoding="utf-8")
    text = changed("return exp / exp.sum(dim, keepdim=True)", "return torch.softmax(x, dim)", text)
    (tmp_path / chapter.file).write_text(text)
    result = run(Job(chapter, tmp_path))
    assert statuses(result)["softmax"] == "wrong"
    assert statuses(result)["scaled_dot_product_attention"] == "done"
    line = next(n for n, t in enumerate(text.splitlines(), 1) if "torch.softmax(" in t)
    said = messages(result, "softmax")
    assert "softmax must not use torch.softmax" in said
    assert f"{chapter.file}:{line}: torch.softmax" in said


NAMED = {
    "overflow": ("np.logaddexp(0.0, z)", "np.log(1 + np.exp(z))", "softplus-overflows"),
    "zero over zero": (
        "    lengths = valid_lengths(hidden, pooling_mask)\n    valid = ",
        "    lengths = np.asarray(pooling_mask).sum(axis=1)\n    if lengths.all():\n"
        "        valid_lengths(hidden, pooling_mask)\n    valid = ",
        "empty-row-becomes-nan",
    ),
}


@pytest.mark.parametrize(("old", "new", "name"), NAMED.values(), ids=NAMED.keys())
def test_a_mistake_that_warns_on_its_way_is_named(tmp_path, old, new, name):
    result = judged(tmp_path, changed(old, new))
    assert name in {i for test in result.tests for i in test.diagnosis}


UNNAMED = {
    "divides by the longest length": ("mean_pool", POOLED, "lengths.max()"),
    "norms after pooling": (
        "classify",
        "return mean_pool(hidden, pooling_mask) @ head",
        "return normalize(mean_pool(hidden, pooling_mask)) @ head",
    ),
    "divides by the classes": (
        "classification_loss",
        "-log_probs[np.arange(B), labels].mean()",
        "-log_probs[np.arange(B), labels].sum() / C",
    ),
}


@pytest.mark.parametrize(("exercise", "old", "new"), UNNAMED.values(), ids=UNNAMED.keys())
def test_numbers_that_agree_here_and_there_get_no_name(tmp_path, exercise, old, new):
    new = f"(hidden * valid[..., None]).sum(axis=1) / {new}" if old == POOLED else new
    result = judged(tmp_path, changed(old, new))
    assert statuses(result)[exercise] == "wrong"
    assert diagnosed(result, exercise) == set()
