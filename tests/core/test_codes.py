import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import Code, Outcome, SelectionStatus

# Stored results hold these numbers, in this order: a change here breaks every file written before.
OUTCOMES = """
    not_run globally_optimal locally_optimal not_locally_optimal finite_stationary_point limit_point infeasible_program
    ambiguous undecided failed prediction_contradicted selection_settled kkt_point
""".split()
GOLDEN = {
    Outcome: {name: number for number, name in enumerate(OUTCOMES)},
    SelectionStatus: {"global_": 1, "local": 2, "not_local": 3, "ambiguous": 4, "not_applicable": 5},
}


@pytest.mark.parametrize("names", GOLDEN)
def test_stored_values_never_change(names):
    assert {member.name: member.value for member in names} == GOLDEN[names]


@pytest.mark.parametrize("same", ["failed", Outcome.failed, 9, Code(9, Outcome)])
def test_equal_by_name_member_number_and_code_and_elementwise(same):
    batch = Code([1, 9, 8, 9], Outcome)
    np.testing.assert_array_equal(batch == same, [False, True, False, True])
    np.testing.assert_array_equal(batch != same, [True, False, True, False])
    assert batch[1] == same and not (batch[1] != same)
    np.testing.assert_array_equal(batch == Code([1, 2, 8, 3], Outcome), [True, False, True, False])


def test_a_loop_over_a_batch_ends_and_one_code_has_no_members():
    assert [str(one) for one in Code([9, 1], Outcome)] == ["failed", "globally_optimal"]
    with pytest.raises(TypeError, match="0-d"):
        iter(Code(9, Outcome))


def test_an_unknown_name_is_an_error_not_false_and_a_number_without_one_is_reported():
    with pytest.raises(ValueError, match="'fialed' is not one of not_run, globally_optimal"):
        Code(9, Outcome) == "fialed"  # noqa: B015
    with pytest.raises(ValueError, match="77 is not a valid Outcome"):
        str(Code(77, Outcome))


def test_stored_as_bytes_indexed_and_printed():
    batch = Code([[1], [9]], Outcome)
    assert batch.name.tolist() == [["globally_optimal"], ["failed"]] and repr(batch[1, 0]) == "Outcome(failed)"
    assert str(batch[jnp.asarray([True, False])][0, 0]) == "globally_optimal"
    stored = np.asarray(batch)
    assert stored.dtype == np.uint8 and np.asarray(batch, dtype=np.int64).dtype == np.int64
    assert stored.tolist() == [[1], [9]] and int(batch[1, 0]) == 9


def test_carried_through_jit_and_vmap():
    def judge(x):
        return Code(jnp.where(x > 0, Outcome.limit_point, Outcome.failed), Outcome)

    batch = jax.jit(jax.vmap(judge))(jnp.asarray([1.0, -1.0]))
    assert batch.name.tolist() == ["limit_point", "failed"]
    assert batch.value.dtype == jnp.uint8


def test_not_hashable():
    # A hash would have to be that of 1, and that of its name.
    assert Code(1, Outcome) == 1 and Code(1, Outcome) == "globally_optimal" and hash(1) != hash("globally_optimal")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Code(1, Outcome))
