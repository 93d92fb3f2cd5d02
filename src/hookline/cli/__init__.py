"""The command line: the commands, and how a program is run under hooks."""
