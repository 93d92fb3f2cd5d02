"""`python -m hookline`: the command line, where no `hookline` script is at hand."""

from __future__ import annotations

from hookline.cli.main import main

if __name__ == "__main__":
    main()
