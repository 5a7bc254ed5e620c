"""The command line: thin, one file a command; nothing imports it."""
