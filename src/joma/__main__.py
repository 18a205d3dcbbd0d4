"""`python -m joma` is the `joma` command."""

from joma.cli.main import main

main()
