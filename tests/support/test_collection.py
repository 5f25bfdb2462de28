import gc

import pytest

from foretrain.support.memory import without_collection


def test_off_inside_and_on_again_after_an_error():
    assert gc.isenabled()

    @without_collection()
    def fails():
        raise RuntimeError(gc.isenabled())

    with pytest.raises(RuntimeError, match="False"):
        fails()
    assert gc.isenabled()


def test_stays_off_where_the_caller_switched_it_off():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_decorates_functions_that_call_each_other():
    @without_collection()
    def inner():
        return gc.isenabled()

    @without_collection()
    def outer():
        return inner(), gc.isenabled()

    assert outer() == (False, False)
    assert gc.isenabled()
