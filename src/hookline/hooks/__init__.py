"""The ready-made hooks, one file each; users import them from `hookline.module_hooks`."""
