"""These packages are installed by ``tests/test_packages.py``, and are no tests of ours."""

collect_ignore_glob = ["*"]
