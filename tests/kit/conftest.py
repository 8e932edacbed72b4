import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def kit(tmp_path):
    """A copy of the kit as a fresh clone has it."""
    from submissions import fresh_copy

    return fresh_copy(tmp_path)
