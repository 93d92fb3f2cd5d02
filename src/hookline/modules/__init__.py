"""Hooks on modules: hook objects, torch's signatures, wrapped layers, and their one engine."""

# Whatever of this package is imported, its part in backward runs is connected.
from hookline.modules import window as window
