"""One way of measuring: interleaved rounds, what a variant costs beyond the first."""

from contextlib import contextmanager

import pytest

from benchmarks.runner import Jobs, Work, figures_of, measure, whole


def test_figures_are_medians_beyond_the_median_of_the_first():
    """The first one stands as it is; a ratio is to it."""
    plain, other = figures_of("work", {"plain": [10, 30, 20], "hooked": [22, 28, 100]})

    assert (plain.variant, plain.extra, plain.ratio) == ("plain", 20, 1.0)
    assert (other.variant, other.extra, other.ratio) == ("hooked", 8, 28 / 20)
    assert (plain.low, plain.high) == (10, 30)
    assert (other.low, other.high) == (2, 80)


def test_what_comes_before_and_after_a_job_is_not_run_again():
    """A job opens once and runs often; one that is measured whole has nothing around it."""
    told = []

    @contextmanager
    def opened():
        told.append("open")
        yield lambda: told.append("run")
        told.append("close")

    jobs = Jobs({"held": opened, "whole": whole(lambda: told.append("all"))})
    variants = jobs.variants()
    with variants["held"]():
        jobs.run()
        jobs.run()
    with variants["whole"]():
        jobs.run()

    assert told == ["open", "run", "run", "close", "all"]


def test_every_variant_runs_in_every_round():
    """Once to warm up, and as often as is asked for."""
    runs = {"a": 0, "b": 0}

    def job(name):
        return whole(lambda: runs.__setitem__(name, runs[name] + 1))

    jobs = Jobs({name: job(name) for name in runs})
    figures = measure(Work("work", jobs.run, 1, jobs.variants(), repeat=4), rounds=3)

    assert runs == {"a": 3 * 5, "b": 3 * 5}
    assert [figure.variant for figure in figures] == ["a", "b"]
    assert figures[1].ratio == pytest.approx(
        (figures[0].extra + figures[1].extra) / figures[0].extra
    )
