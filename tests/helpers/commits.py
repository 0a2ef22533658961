from tests.helpers.prompts import real  # noqa: F401


COMMITS = {"main": "a" * 40, "v1": "1" * 40}
