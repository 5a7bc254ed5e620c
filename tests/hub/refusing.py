"""What is refused, in one line."""

from collections.abc import Callable
from typing import Any

import pytest

from anyformer.errors import AnyformerError


def refusal(function: Callable[[], Any]) -> str:
    """The message with which `function` refuses."""
    with pytest.raises(AnyformerError) as caught:
        function()
    message = str(caught.value)
    assert "\n" not in message
    return message
