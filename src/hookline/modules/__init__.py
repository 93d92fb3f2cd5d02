"""Hooks on modules: hook objects, torch's signatures, wrapped layers, and their one engine."""
