"""Hooks on functions, forward and backward: every call of a torch function in a thread."""

# Whatever of this package is imported, its part in backward runs is connected.
from hookline.functions import unrecorded as unrecorded
from hookline.functions import window as window
