"""`python -m edgedraft_apps` is `edgedraft`."""

from edgedraft_apps.cli import main

main()
