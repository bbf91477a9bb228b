"""`python -m modelexport`: the command line."""

from modelexport.cli.main import run

run()
