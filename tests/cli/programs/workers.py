"""Starts child processes in every way that there is; each calls a function defined here."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor


class Point:
    """Travels between the processes, so it must be found in `__main__`."""

    def __init__(self, x):
        self.x = x


def work(point):
    seen = [name for name in sys.modules if name.startswith(("hookline", "click", "torch"))]
    return Point(point.x + 1), __name__, sys.argv, seen


if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            point, *seen = pool.submit(work, Point(1)).result()
        print(method, type(point) is Point, point.x, *seen)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        point, name, argv, _ = pool.apply(work, (Point(1),))
    print("fork", type(point) is Point, point.x, name, argv)
