"""What a learner's file may do to the grader, and what the grader says of it."""

import functools
import sys

import psutil
import pytest

import submissions
from grader import processes
from grader.chapters import ROOT
from submissions import (
    CHAPTER,
    SOLUTION,
    STUB,
    changed,
    in_mean_pool,
    messages,
    statuses,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", params=["cold", "warm"])
def start(request):
    """Every fault must get the same verdict however its process is started."""
    if request.param == "cold":
        yield processes.cold
    elif sys.platform != "linux":
        pytest.skip("forks are for Linux")
    else:
        warm = processes.Warm("numpy")
        yield warm
        warm.close()


@pytest.fixture
def judged(start):
    return functools.partial(submissions.judged, start=start)


OTHERS_DONE = {exercise.name: "done" for exercise in CHAPTER.exercises}
OUT_OF_MEMORY = "block = bytearray(64 << 30)"

IN_ONE_EXERCISE = {
    "exits at once": ("import os; os._exit(0)", "broken", "the process ended with exit code 0"),
    "calls sys.exit": ("raise SystemExit(0)", "broken", "sys.exit() was called"),
    "ends pytest": (
        "import pytest; pytest.exit('done', returncode=0)",
        "broken",
        "the run was ended from inside the test",
    ),
    "skips": ("import pytest; pytest.skip('later')", "wrong", "a skip is not a pass"),
    "expects to fail": ("import pytest; pytest.xfail('later')", "wrong", "a skip is not a pass"),
    "crashes in C": (
        "import ctypes; ctypes.string_at(0)",
        "broken",
        "the process died (segmentation fault)",
    ),
    "raises": ("{}['gone']", "broken", "KeyError: 'gone'"),
    "asserts": ("assert False, 'no'", "wrong", "no"),
    "never answers": ("while True: pass", "broken", "no answer in 1 s"),
    "takes all memory": (OUT_OF_MEMORY, "broken", "MemoryError"),
    "asks for input": ("input()", "wrong", "input() and reading from stdin"),
    "recurses for ever": ("mean_pool(hidden, pooling_mask)", "broken", "RecursionError"),
    "raises an interrupt": ("raise KeyboardInterrupt", "broken", "ended from inside the test"),
    "an error that cannot be shown": (
        "raise type('Odd', (Exception,), {'__str__': lambda self: 1})()",
        "broken",
        "Odd, whose message cannot be shown",
    ),
    "a message of ten megabytes": ("raise ValueError('x' * 10**7)", "broken", "characters)"),
    "a message with escapes": ("raise ValueError('\\x1b[2J')", "broken", "\\x1b[2J"),
    "deep recursion": (
        "import sys; sys.setrecursionlimit(10**5); mean_pool(hidden, pooling_mask)",
        "broken",
        "RecursionError",
    ),
    "a folder that is gone": (
        "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d); 1 / 0",
        "broken",
        "ZeroDivisionError",
    ),
    "an object": ("return object()", "wrong", "expected an array of shape (2, 2), got <object"),
    "strings": ("return hidden[:, 0].astype(str)", "wrong", "expected dtype float64, got <U"),
    "NumPy made strict": ("np.seterr(all='raise')", "done", ""),
    "memory of several processes": (
        "import multiprocessing as m; c = m.get_context('fork')\n"
        "    for _ in range(3): c.Process(target=lambda: bytearray(3 << 30) and "
        "__import__('time').sleep(60)).start()\n    __import__('time').sleep(9)",
        "broken",
        "",
    ),
    "closes every descriptor": (
        "import os; os.closerange(0, 100)",
        "broken",
        "the process ended",
    ),
}


@pytest.mark.parametrize(
    ("line", "status", "message"), IN_ONE_EXERCISE.values(), ids=IN_ONE_EXERCISE.keys()
)
def test_a_fault_in_one_exercise_leaves_the_others_done(judged, tmp_path, line, status, message):
    result = judged(tmp_path, in_mean_pool(line), limit=1)
    assert statuses(result) == OTHERS_DONE | {"mean_pool": status}
    assert message in messages(result, "mean_pool")
    assert result.status == status


def test_a_loop_that_swallows_every_exception_is_killed(judged, tmp_path):
    loop = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    while True: pass"
    result = judged(tmp_path, in_mean_pool(loop), limit=1)
    assert statuses(result) == OTHERS_DONE | {"mean_pool": "broken"}
    assert "no answer in 1 s, and the process had to be killed" in messages(result, "mean_pool")


AT_IMPORT = {
    "syntax error": ("def broken(:", "line 1: SyntaxError: "),
    "missing module": ("import not_installed", "No module named 'not_installed'"),
    "exits at once": ("import os; os._exit(0)", "the process ended with exit code 0"),
    "calls sys.exit": ("import sys; sys.exit(0)", "sys.exit() was called"),
    "never ends": ("while True: pass", "no answer in 1 s"),
    "raises what nobody catches": ("raise GeneratorExit", "GeneratorExit"),
    "imports its own solution": (
        f"from solutions.{CHAPTER.stem} import mean_pool",
        f"line 1 imports solutions.{CHAPTER.stem}, this chapter's answer",
    ),
    "null bytes": ("x = '\0'", "null bytes"),
}


@pytest.mark.parametrize(("line", "message"), AT_IMPORT.values(), ids=AT_IMPORT.keys())
def test_a_file_that_cannot_be_loaded_is_broken_and_says_why_once(judged, tmp_path, line, message):
    result = judged(tmp_path, f"{line}\n{SOLUTION}", limit=1)
    assert result.status == "broken"
    parts = [test for row in result.exercises for test in row.tests]
    assert {test.outcome for test in parts} == {"broken"}
    said = {test.message for test in parts}
    assert len(said) == 1
    assert f"{CHAPTER.file} cannot be loaded: " in next(iter(said))
    assert message in next(iter(said))


def test_a_demo_that_calls_a_stub_at_import_is_told(judged, tmp_path):
    result = judged(tmp_path, STUB + "\nprint(mean_pool(np.zeros((1, 1, 1)), np.ones((1, 1))))\n")
    assert result.status == "broken"
    said = result.tests[0].message
    assert "ch11 mean_pool is called while the file loads, and is not written yet" in said


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux only")
def test_a_daemon_is_ended_with_its_run(judged, tmp_path):
    line = (
        "import subprocess; subprocess.Popen(['sleep', '321.5'], start_new_session=True, "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    )
    assert statuses(judged(tmp_path, in_mean_pool(line))) == OTHERS_DONE
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", "321.5"] not in running


def test_a_skip_at_import_is_not_a_pass(judged, tmp_path):
    skip = "import pytest; pytest.skip('later', allow_module_level=True)\n"
    result = judged(tmp_path, skip + SOLUTION)
    assert result.status == "wrong"
    assert result.passed == 0


def test_a_missing_function_breaks_its_own_tests_only(judged, tmp_path):
    result = judged(tmp_path, changed("def mean_pool(", "def renamed("))
    assert statuses(result) == OTHERS_DONE | {"mean_pool": "broken"}
    assert f"{CHAPTER.file} has no mean_pool" in messages(result, "mean_pool")


def test_another_signature_is_broken_with_the_call(judged, tmp_path):
    text = changed("def mean_pool(hidden: np.ndarray, pooling_mask: np.ndarray)", "def mean_pool()")
    result = judged(tmp_path, text)
    assert statuses(result) == OTHERS_DONE | {"mean_pool": "broken"}
    assert "takes 0 positional arguments" in messages(result, "mean_pool")


PATCHES = {
    "NumPy's comparison": "np.isclose = lambda *a, **k: np.array(True)",
    "the checks": "import grader.checks as c; c.assert_close = lambda *a, **k: None",
    "pytest.fail": "import pytest; pytest.fail = print",
    "what errors mean": (
        "import grader.plugin as p, grader.messages as m\n"
        "p.describe = m.describe = lambda *a: ('passed', '')"
    ),
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES.keys())
def test_a_patched_framework_is_told(judged, tmp_path, patch):
    wrong = changed("lengths[:, None]  # (B, D)", "hidden.shape[1]")
    result = judged(tmp_path, wrong + "\n" + patch + "\n")
    assert result.status == "tampered"


def test_records_written_by_the_learners_code_are_not_believed(judged, tmp_path):
    forged = (
        '\nimport os\nfor pipe in range(3, 20):\n    try: os.write(pipe, b\'{"event": "exit"}\\n\')'
        "\n    except OSError: pass\n"
    )
    result = judged(tmp_path, SOLUTION + forged)
    assert result.status == "broken"
    assert "wrote to the grader's pipe" in result.problem_message


def test_a_thread_left_running_holds_nothing_up(judged, tmp_path):
    thread = "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    assert judged(tmp_path, SOLUTION + thread).status == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
@pytest.mark.parametrize(
    "path", [CHAPTER.tests, CHAPTER.stub, ROOT / "grader" / "checks.py"], ids=lambda path: path.name
)
def test_a_run_cannot_change_the_kit(judged, tmp_path, path):
    before = path.read_bytes()
    result = judged(tmp_path, in_mean_pool(f"open({str(path)!r}, 'w')"))
    assert path.read_bytes() == before
    assert statuses(result) == OTHERS_DONE | {"mean_pool": "broken"}
    assert "PermissionError" in messages(result, "mean_pool")


def test_temporary_files_may_be_written(judged, tmp_path):
    line = "import tempfile; tempfile.NamedTemporaryFile().write(b'x')"
    assert judged(tmp_path, in_mean_pool(line)).status == "done"


def test_forks_that_go_on_do_not_double_without_end(judged, tmp_path):
    result = judged(tmp_path, in_mean_pool("import os; os.fork()"))
    assert statuses(result) | {"mean_pool": ""} == OTHERS_DONE | {"mean_pool": ""}
    assert result.seconds < 40


def test_a_conftest_beside_the_file_is_not_loaded(judged, tmp_path):
    (tmp_path / "conftest.py").write_text("raise SystemExit('loaded')")
    assert judged(tmp_path, SOLUTION).status == "done"


def test_a_flood_of_output_is_kept_short(judged, tmp_path):
    flood = "\nimport os\nfor _ in range(300): os.write(1, b'x' * 100000)\n"
    result = judged(tmp_path, SOLUTION + flood)
    assert result.status == "done"
    assert sum(len(test.printed) for test in result.tests) < 64 * 1024


def test_what_a_failing_exercise_printed_comes_with_its_test(judged, tmp_path):
    result = judged(tmp_path, in_mean_pool("print('shape', hidden.shape); assert False"))
    first = next(row for row in result.exercises if row.exercise.name == "mean_pool").tests[0]
    assert first.printed == "shape (2, 4, 2)\n"


def test_answers_that_change_from_call_to_call_are_wrong(judged, tmp_path):
    text = changed(
        "    valid = np.asarray(pooling_mask, dtype=bool)\n",
        "    valid = np.asarray(pooling_mask, dtype=bool)\n    calls.append(1)\n"
        "    hidden = hidden + (len(calls) == 30)\n",
    )
    result = judged(tmp_path, text + "\ncalls = []\n")
    assert statuses(result) == OTHERS_DONE | {"mean_pool": "wrong"}


def test_the_repository_is_left_as_it_was():
    assert not (ROOT / ".hypothesis").exists()
