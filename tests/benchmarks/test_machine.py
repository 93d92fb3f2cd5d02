"""Figures say what they were measured with."""

import platform

import torch

import hookline
from benchmarks.machine import about, load, processor, sentence


def test_versions_processor_and_load_are_told():
    """Those of the library, of torch, and of what is asked for besides."""
    told = about("numpy")
    assert told["hookline"] == hookline.__version__
    assert torch.__version__ == told["torch"] or torch.__version__.startswith(f"{told['torch']}+")
    assert told["Python"] == platform.python_version()
    assert told["processor"].startswith(processor())
    assert processor()
    assert "numpy" in told
    assert len(load().split(", ")) == 3
    assert sentence({"torch": "2.13", "load": "1.0"}) == "torch 2.13, load 1.0"
