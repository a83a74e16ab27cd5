"""The command line: one file per verb, heavy imports only when a verb runs."""
