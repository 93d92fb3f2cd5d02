"""The core: phases, registries, scopes, calls and errors. It knows no torch."""
