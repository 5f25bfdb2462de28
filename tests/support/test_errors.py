from __future__ import annotations

import pickle

import pytest

from foretrain.support import errors

KINDS = {
    errors.InputError: ValueError,
    errors.FileError: OSError,
    errors.NotSupportedError: TypeError,
    errors.NotEnoughMemoryError: MemoryError,
    errors.EngineError: RuntimeError,
}


@pytest.mark.parametrize(("kind", "familiar"), KINDS.items())
def test_every_error_is_ours_and_of_a_familiar_kind(
    kind: type[errors.ForetrainError], familiar: type[Exception]
) -> None:
    assert issubclass(kind, errors.ForetrainError)
    assert issubclass(kind, familiar)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_survive_the_way_back_from_a_worker(kind: type[errors.ForetrainError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("this is wrong: do that.")))
    assert type(copy) is kind
    assert str(copy) == "this is wrong: do that."
    # What Dask's workers use instead of the class's own way of being copied.
    assert type(kind.__new__(kind, "this is wrong: do that.")) is kind


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    assert str(errors.unknown_name("fruit", "Aple", ["pear", "apple"])) == (
        "unknown fruit 'Aple': did you mean 'apple'?"
    )
    assert str(errors.unknown_name("fruit", "xyz", ["pear", "apple"])) == (
        "unknown fruit 'xyz': choose one of: apple, pear."
    )
