"""The hottest paths take no more instructions than when their figures were last written."""

import pytest
from torch import nn

import hookline
from benchmarks.opcodes import PATHS, VERSION, count_run, per_call, reference

# Another Python takes other instructions for the same code: there only gross changes are seen.
KNOWN = reference()
FIGURES = KNOWN.get(VERSION, KNOWN["3.11"])
TOLERANCE = 1.02 if VERSION in KNOWN else 1.3


@pytest.mark.parametrize("name", PATHS)
def test_a_hot_path_takes_no_more_instructions(name):
    """Slower than before is noticed; faster asks for new figures, so that it stays so."""
    figure = per_call(PATHS[name])

    told = "python -m benchmarks.opcodes --write makes it the figure to compare with"
    assert figure <= FIGURES[name] * TOLERANCE, told
    assert figure >= FIGURES[name] / TOLERANCE**2, told


def test_every_path_has_a_figure():
    """Nothing is compared with nothing."""
    assert FIGURES.keys() == PATHS.keys()


def test_instructions_of_hookline_alone_are_counted():
    """What torch does counts nothing; twice as many calls count twice."""
    layer = nn.Identity()

    def call(times):
        for _ in range(times):
            layer(1)

    assert count_run(lambda: call(3)) == 0
    with hookline.register_forward_hook(layer, lambda *_: None):
        call(2)
        once, again, twice = (count_run(lambda n=n: call(n)) for n in (1, 1, 2))
    assert 0 < once == again
    assert twice == 2 * once
