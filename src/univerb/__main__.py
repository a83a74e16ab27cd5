"""`python -m univerb`: the command line."""

from univerb.cli.app import main

main()
