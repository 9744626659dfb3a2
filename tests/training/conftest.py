from conftest_training import corpus  # noqa: F401
