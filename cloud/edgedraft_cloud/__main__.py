"""`python -m edgedraft_cloud` is `edgedraft-verifier`."""

from edgedraft_cloud.cli import main

main()
