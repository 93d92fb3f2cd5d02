"""`DistributedDataParallel` and `fully_shard` with two processes: the checks of `ddp` and `fsdp`.

Starting processes takes seconds, so one pair runs all checks of a module, and each is a test here.
"""

import pytest

from tests.distributed.pair import names, run_pair

DDP, FSDP = "tests.distributed.ddp", "tests.distributed.fsdp"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both processes found, for each module of checks."""
    results = {}

    def of(checks):
        if checks not in results:
            results[checks] = run_pair(checks, tmp_path_factory.mktemp("pair"))
        return results[checks]

    return of


def assert_ok(results, name):
    for rank, result in enumerate(results):
        told = result.get(name, f"not reached; its output ends\n{result['log'][-2000:]}")
        assert told == "ok", f"process {rank}: {told}"


@pytest.mark.parametrize("name", names(DDP))
def test_ddp(found, name):
    """Under `DistributedDataParallel`; see the check of that name."""
    assert_ok(found(DDP), name)


@pytest.mark.parametrize("name", names(FSDP))
def test_fsdp(found, name):
    """Under `fully_shard`, and for sharded tensors; see the check of that name."""
    assert_ok(found(FSDP), name)


def test_a_check_that_fails_in_one_process_is_told(tmp_path):
    """So is that the other never got through; neither is waited for."""
    first, second = run_pair("tests.distributed.failing", tmp_path)
    assert first["check_one"] == second["check_one"] == "ok"
    assert "only here" in second["check_two"]
    assert "check_two" not in first or first["check_two"] != "ok"
    assert "check_three" not in first
    assert "check_three" not in second
    with pytest.raises(AssertionError, match="process 1: Traceback"):
        assert_ok([{**first, "check_two": "ok"}, second], "check_two")
