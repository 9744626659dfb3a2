from conftest_training import corpus, origin_run  # noqa: F401
