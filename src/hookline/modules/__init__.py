"""Hooks on modules: hook objects, torch's signatures, wrapped layers, and their one engine."""

# Whatever of this package is imported, the engine is there to be turned on.
from hookline.modules import engine as engine
