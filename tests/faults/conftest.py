import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is killed, cut off or filled up takes its time: -m 'not slow' leaves it out."""
    for item in items:
        if "faults" in item.path.parts:
            item.add_marker("slow")
