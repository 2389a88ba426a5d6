"""Factorisations in a batch: as JAX's own, and never a LAPACK call on CPU that waits for a pool of threads; MINRES."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import lineax
import numpy as np
import optimistix
import pytest

from jaxflow._core import linalg, minres

BATCH, M = 5, 8
THEIRS = optimistix.Chord(rtol=1e-10, atol=1e-10, linear_solver=linalg.LU())


def _definite(matrix: Any) -> Any:
    return matrix @ matrix.T + jnp.eye(len(matrix))


def _of_both(solve: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of a matrix of right sides, and of one right side."""
    return lambda a, b: (solve(a, b), solve(a, b[:, 0]))


def _leading(matrix: Any, count: int = 2) -> Any:
    return jnp.eye(len(matrix)).at[:count, :count].set(matrix[:count, :count])


# What each function does of a matrix A and a right side b, and JAX's own way to the same.
PAIRS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "cholesky": (
        lambda a, b: linalg.cholesky(_definite(a)),
        lambda a, b: jnp.linalg.cholesky(_definite(a)),
    ),
    "cholesky_solve": (
        _of_both(lambda a, b: linalg.cholesky_solve(linalg.cholesky(_definite(a)), b)),
        _of_both(lambda a, b: jnp.linalg.solve(_definite(a), b)),
    ),
    "lower_solve": (
        _of_both(lambda a, b: linalg.lower_solve(jnp.tril(_definite(a)), b)),
        _of_both(lambda a, b: jsp.linalg.solve_triangular(jnp.tril(_definite(a)), b, lower=True)),
    ),
    "solve": (_of_both(linalg.solve), _of_both(jnp.linalg.solve)),
    "leading_solve": (
        lambda a, b: linalg.leading_solve(_leading(a), b[:, 0], jnp.asarray(2)),
        lambda a, b: jnp.linalg.solve(_leading(a), b[:, 0]),
    ),
    "solve_where": (
        lambda a, b: linalg.solve_where(a, b, a[0, 0] > 0),
        lambda a, b: jnp.where(a[0, 0] > 0, jnp.linalg.solve(a, b), 0.0),
    ),
    "lu_solve": (lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b), jnp.linalg.solve),
    "lstsq": (
        lambda a, b: linalg.lstsq(a[:2], b[:2, 0]),
        lambda a, b: jnp.linalg.lstsq(a[:2], b[:2, 0])[0],
    ),
    "qr": (lambda a, b: linalg.qr(a[:, :3]), lambda a, b: tuple(jnp.linalg.qr(a[:, :3]))),
    "svd": (lambda a, b: linalg.svd(a[:3]), lambda a, b: tuple(jnp.linalg.svd(a[:3], full_matrices=False))),
    # Tall, where a vector may have the other sign.
    "right_svd": (
        lambda a, b: jax.tree.map(jnp.abs, linalg.right_svd(a[:, :3])),
        lambda a, b: tuple(map(jnp.abs, jnp.linalg.svd(a[:, :3], full_matrices=False)[1:])),
    ),
    "singular_values": (
        lambda a, b: linalg.singular_values(a),
        lambda a, b: jnp.linalg.svd(a, compute_uv=False),
    ),
    "eigh": (lambda a, b: linalg.eigh(a + a.T), lambda a, b: tuple(jnp.linalg.eigh(a + a.T))),
    "eigvalsh": (lambda a, b: linalg.eigvalsh(a + a.T), lambda a, b: jnp.linalg.eigvalsh(a + a.T)),
}


@pytest.fixture(scope="module")
def systems() -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    return jnp.asarray(random.normal(size=(BATCH, M, M))), jnp.asarray(random.normal(size=(BATCH, M, 2)))


def _all(which: int, names: Iterable[str] = PAIRS) -> Callable[[Any, Any], dict[str, Any]]:
    return lambda a, b: {name: PAIRS[name][which](a, b) for name in names}


def test_every_function_is_in_the_list():
    written = {name for name, value in vars(linalg).items() if getattr(value, "__module__", "") == linalg.__name__}
    rest = {"definite", "doublings", "lu_factor", "LU", "newton", "chord"}
    assert {name for name in written if name[0] != "_"} == PAIRS.keys() | rest


def test_batches_and_forward_derivatives_agree_with_jax(systems: tuple[jax.Array, jax.Array]):
    def answers(which: int) -> Callable[[Any, Any], Any]:
        solve = (linalg.solve, jnp.linalg.solve)[which]
        return lambda a, b: _all(which)(a, b) | {"derivative": jax.jvp(solve, (a, b), (b @ b.T, b))[1]}

    ours, theirs = (jax.jit(jax.vmap(answers(which)))(*systems) for which in (0, 1))
    # The same kernels, called for one matrix instead of five.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12), ours, theirs)


@pytest.mark.slow
def test_batches_within_batches(systems: tuple[jax.Array, jax.Array]):
    # The right side belongs to the outer batch alone, and leading axes of a matrix are a batch without `vmap`.
    a, b = systems
    stack = jnp.stack([a, a + 1.0])
    x = jax.jit(jax.vmap(jax.vmap(linalg.solve, (0, None)), (0, None)))(stack, b[0])
    np.testing.assert_allclose(x, jnp.linalg.solve(stack, b[0][None, None]), rtol=1e-10)
    np.testing.assert_allclose(linalg.singular_values(stack), jnp.linalg.svd(stack, compute_uv=False), rtol=1e-12)


def test_tiny_matrices_in_plain_operations(systems: tuple[jax.Array, jax.Array]):
    tiny = systems[0][:, : linalg.TINY, : linalg.TINY], systems[1][:, : linalg.TINY]
    ours, theirs = (jax.jit(jax.vmap(_all(which, ("cholesky", "cholesky_solve", "lower_solve")))) for which in (0, 1))
    assert "lapack" not in ours.lower(*tiny).as_text()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13), ours(*tiny), theirs(*tiny))
    # Where there is no factor it is NaN.
    assert np.isnan(linalg.cholesky(-jnp.eye(linalg.TINY))).any()


@pytest.mark.parametrize("m", [1, 4, 20])
def test_definite_is_having_a_cholesky_factor(m: int):
    random = np.random.default_rng(m)
    root = random.normal(size=(40, m, m))
    matrices = jnp.asarray(root @ root.transpose(0, 2, 1) - random.uniform(0, 0.2 * m, size=(40, 1, 1)) * np.eye(m))
    matrices = matrices.at[0].set(jnp.nan).at[1].set(0.0).at[2].set(jnp.eye(m))
    found = jax.jit(jax.vmap(linalg.definite))(matrices)
    known = jnp.isfinite(jnp.linalg.cholesky(matrices)).all((1, 2))
    np.testing.assert_array_equal(found, known)
    assert not found[:2].any() and found[2] and 0 < found.sum() < 40


def _calls(function: Callable[..., Any], *arrays: jax.Array) -> dict[str, int]:
    """The largest batch of a LAPACK call on CPU, by the name of its kernel."""
    text = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cpu",)).as_text()
    found: dict[str, int] = {}
    for kernel, shape in re.findall(r"@(lapack_\w+)\(.*?\) -> \(?tensor<([\dx]*)f64>", text):
        sizes = [int(size) for size in shape.split("x") if size]
        batch = int(np.prod(sizes[:-2])) if len(sizes) > 2 else 1
        found[kernel] = max(batch, found.get(kernel, 0))
    return found


def test_few_matrices_a_call_on_cpu_and_all_elsewhere():
    # A call takes at most WORK operations, a quarter of what makes its kernel wait for the pool; what costs more than
    # that, or is not estimated, comes alone.
    for m, factors, substitutions in ((8, 138, 400), (20, 12, 83), (60, 1, 9)):
        matrix, right = jnp.zeros((400, m, m)), jnp.zeros((400, m, 2))
        calls = _calls(jax.vmap(lambda a, b: linalg.cholesky_solve(linalg.cholesky(a), b)), matrix, right)
        assert 0.5 * factors <= calls["lapack_dpotrf_ffi"] <= factors
        assert 0.5 * substitutions <= calls["lapack_dtrsm_ffi"] <= substitutions
        lu = _calls(jax.vmap(linalg.solve), matrix, right)["lapack_dgetrf_ffi"]
        assert lu == 1 or 2 / 3 * m**3 * lu <= linalg.WORK
    random = jnp.ones((7, M, M)), jnp.ones((7, M, 2))
    rest = _calls(jax.vmap(_all(0)), *random)
    theirs = _calls(jax.vmap(_all(1)), *random)
    quick = {"lapack_dpotrf_ffi", "lapack_dtrsm_ffi", "lapack_dgetrf_ffi"}
    assert quick < set(rest) and {rest[name] for name in set(rest) - quick} == {1} and set(theirs.values()) == {7}
    gpu = jax.jit(jax.vmap(lambda a: linalg.cholesky(_definite(a)))).trace(random[0])
    assert "stablehlo.while" not in gpu.lower(lowering_platforms=("cuda",)).as_text()


def test_a_batch_has_the_bits_of_single_calls():
    random = np.random.default_rng(3)
    matrix, right = jnp.asarray(random.normal(size=(53, 20, 20))), jnp.asarray(random.normal(size=(53, 20)))

    def both(a: Any, b: Any) -> Any:
        return linalg.cholesky(a @ a.T), linalg.solve(a, b)

    batch = jax.jit(jax.vmap(both))(matrix, right)
    single = jax.jit(lambda a, b: jax.lax.map(lambda pair: both(*pair), (a, b)))(matrix, right)
    # The product a @ aᵀ is not LAPACK's: its sums may be taken in another order.
    np.testing.assert_allclose(batch[0], single[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(batch[1], single[1])


def test_linear_solver_is_lineax_lu(systems: tuple[jax.Array, jax.Array]):
    # Unknowns and equations as trees of different shapes.
    a = systems[0][:, :4, :4]
    right = {"one": jnp.ones(3), "two": jnp.full((1, 1), 2.0)}

    def apply(a: Any, x: Any) -> Any:
        y = a @ jnp.concatenate([x[0], x[1].ravel()])
        return {"one": y[:3], "two": y[3:, None]}

    def solved(a: Any, solver: Any) -> Any:
        unknowns = (jax.ShapeDtypeStruct((1,), a.dtype), jax.ShapeDtypeStruct((3, 1), a.dtype))
        operator = lineax.FunctionLinearOperator(lambda x: apply(a, x), unknowns)
        state = solver.init(operator, {})
        back, _ = solver.transpose(state, {})
        conjugated, _ = solver.conj(state, {})
        backwards = solver.compute(back, (jnp.ones(1), jnp.ones((3, 1))), {})[0]
        return lineax.linear_solve(operator, right, solver).value, backwards, solver.compute(conjugated, right, {})[0]

    ours, theirs = (jax.vmap(lambda a, s=s: solved(a, s))(a) for s in (linalg.LU(), lineax.LU()))
    # Lineax's conjugate is the transpose as well, which a real matrix shows: the third is ours alone.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10), ours[:2], theirs[:2])
    jax.tree.map(np.testing.assert_array_equal, ours[2], ours[0])
    assert linalg.LU().assume_full_rank()
    with pytest.raises(ValueError, match="square"):
        linalg.LU().init(lineax.MatrixLinearOperator(jnp.ones((2, 3))), {})


# Several independent factorisations in a loop, two programs at a time, a pool of one thread for each core: with JAX's
# own batched calls one program alone stands still on two cores.
STRESS = """
import threading
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from jaxflow._core.linalg import cholesky, solve
batch = jax.vmap(lambda a: solve(cholesky(a @ a.T + jnp.eye(16)) + jnp.eye(16), a))
def chain(A):
    for _ in range(4):
        A = jnp.sin(batch(A) @ A)
    return A
step = lambda i, A: A + 1e-9 * sum(chain(A * (1 + 0.1 * k)) for k in range(8))
program = jax.jit(lambda A: jax.lax.fori_loop(0, 10, step, A))
A = jax.random.normal(jax.random.key(0), (256, 16, 16))
def work():
    for _ in range(2):
        program(A).block_until_ready()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("through")
"""


@pytest.mark.slow
def test_programs_with_many_factorisations_do_not_hang():
    plain = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS", "PJRT_NPROC")}
    # Some ten seconds where nothing else runs.
    run = subprocess.run(
        [sys.executable, "-c", STRESS], env=plain, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stdout.strip() == "through", run.stderr


@pytest.mark.parametrize(("dtype", "steps"), [(jnp.float32, 5), (jnp.float64, 6)])
def test_so_many_doublings_reach_all_digits(dtype: Any, steps: int) -> None:
    assert linalg.doublings(dtype) == steps
    # A half, squared as often, is below the rounding of one.
    assert 0.5 ** (2**steps) < jnp.finfo(dtype).eps <= 2.0 * 0.5 ** (2 ** (steps - 1))


@pytest.mark.slow
def test_a_step_has_one_jacobian():
    # The oscillator of van der Pol with a damping of 100.
    term = diffrax.ODETerm(lambda t, y, args: jnp.stack([y[1], 100.0 * (1.0 - y[0] ** 2) * y[1] - y[0]]))
    (begin, end), start, rate = jnp.array([0.0, 0.1]), jnp.array([2.0, -0.01]), jnp.zeros(2)

    def step(finder: Any, start: jax.Array) -> jax.Array:
        solver = diffrax.Kvaerno5(root_finder=finder)
        return solver.step(term, begin, end, start, None, (False, rate), made_jump=True)[0]

    chord, newton = linalg.chord(1e-10, 1e-10), linalg.newton(1e-10, 1e-10)
    # Diffrax hands over the one of the second stage. Optimistix' own takes one at each stage beside it.
    programs = [jax.jit(lambda y, f=f: step(f, y)).lower(start).compile().as_text() for f in (chord, THEIRS)]
    ours, theirs = (program.count('custom_call_target="lapack_dgetrf') for program in programs)
    assert ours == theirs - 1
    np.testing.assert_allclose(step(chord, start), step(newton, start), rtol=1e-9)
    # Ended by what is left to change, a step is as exact as is asked for: here changes fall slowly.
    slow = jnp.array([1.2, -1.0])
    exact = step(newton, slow)
    for tolerance in (1e-3, 1e-5, 1e-7):
        off = jnp.abs(step(linalg.chord(tolerance, tolerance, residual=False), slow) - exact)
        assert jnp.max(off / (1.0 + jnp.abs(exact))) <= tolerance


def test_minres_solves_an_indefinite_system() -> None:
    """Two leaves, eigenvalues of both signs, each five times: as many products as there are different ones."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    K = turn @ np.diag(np.repeat([-2.0, -0.3, 0.1, 0.7, 1.0, 5.0], 5)) @ turn.T
    b = rng.normal(size=30)

    def product(x):
        image = K @ jnp.concatenate([x["a"], x["b"]])
        return {"a": image[:10], "b": image[10:]}

    right = {"a": jnp.asarray(b[:10]), "b": jnp.asarray(b[10:])}
    found, count = minres(product, right, rtol=1e-12, max_steps=100)
    assert 6 <= int(count) <= 8
    # The condition number, 50, times the residual asked for, and roundings.
    np.testing.assert_allclose(np.concatenate([found["a"], found["b"]]), np.linalg.solve(K, b), atol=1e-10)
    nothing, count = minres(product, {"a": jnp.zeros(10), "b": jnp.zeros(20)}, rtol=1e-12, max_steps=100)
    assert int(count) == 0 and not np.any(nothing["a"])


@pytest.mark.parametrize("count", [0, 1, 6, 20])
def test_a_leading_block_is_solved_in_the_smallest_size_that_holds_it(count: int) -> None:
    matrix, right = _leading(jax.random.normal(jax.random.key(0), (20, 20)), count), jnp.arange(20.0)
    found = jax.jit(linalg.leading_solve)(matrix, right, jnp.asarray(count))
    np.testing.assert_allclose(found, jnp.linalg.solve(matrix, right), rtol=1e-10)
