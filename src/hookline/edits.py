"""What a patch can do to a value: see [patch][hookline.patch].

Each takes `on=` (what it changes), `at=` (which part of it) and `calls=` (when), as
[zero][hookline.edits.zero] explains.
"""

from __future__ import annotations

from hookline.hooks.changes import add, apply, clamp, mean, replace, scale, zero
from hookline.hooks.editing import Edit
from hookline.hooks.pick import head

__all__ = ["Edit", "add", "apply", "clamp", "head", "mean", "replace", "scale", "zero"]
