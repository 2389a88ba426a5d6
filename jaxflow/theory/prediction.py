"""Which program a limit solves, and by which theorem."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import AbstractPrinted, checked, is_concrete
from jaxflow.data import TokenData
from jaxflow.losses import Correlation, Exponential, Logistic
from jaxflow.margin import AbstractProgram, Nuclear, attention_svm, prompt_svm
from jaxflow.models import (
    AbstractAttention,
    CombinedAttention,
    DiagonalAttention,
    FactoredAttention,
    PromptAttention,
    is_linear,
    token_scores,
)
from jaxflow.risk import EmpiricalRisk


class Assumption(AbstractPrinted):
    """A hypothesis with its verdict on this instance; `slack`: by how much it holds (negative: it fails)."""

    statement: str = eqx.field(static=True)
    holds: Bool[Array, ""]
    slack: Float[Array, ""]


class Prediction(AbstractPrinted):
    """A prediction: the program that the limit direction solves, the theorem, its hypotheses.

    Hypotheses that a finite computation cannot decide (such as "initialised close enough") are part of `theorem`; the
    others are `assumptions`. The theorem's name ends at its first colon.

    **Example:**

    ```python
    prediction = jf.theory.predict(risk, model, limit.selection)
    prediction.program, prediction.theorem, prediction.assumptions
    ```
    """

    program: AbstractProgram
    theorem: str = eqx.field(static=True)
    assumptions: tuple[Assumption, ...]

    @property
    def applies(self) -> Bool[Array, ""]:
        """Whether every assumption that was checked holds for these data and this start."""
        return all_hold(self.assumptions)

    def sentence(self) -> str:
        """The theorem where it applies; else which of its assumptions fail, and by how much. Of one instance."""
        return theorem_or_failures(self.theorem, self.assumptions)

    def __str__(self) -> str:
        single = is_concrete(self.applies) and self.applies.ndim == 0
        return self.sentence() if single else f"{self.theorem}."


@checked()
def all_hold(assumptions: tuple[Assumption, ...]) -> Bool[Array, ""]:
    """Whether all of them hold; True for an empty set."""
    return jnp.all(jnp.stack([jnp.asarray(True), *(assumption.holds for assumption in assumptions)]))


@checked()
def theorem_or_failures(theorem: str, assumptions: tuple[Assumption, ...]) -> str:
    """A sentence: the theorem where all assumptions hold; else which fail, and by how much. Of one instance."""
    failing = [a for a in assumptions if not bool(a.holds)]
    if not failing:
        return f"{theorem}."
    name = theorem.split(": ", 1)[0]
    reasons = "; ".join(f"<{a.statement}> fails by {-float(a.slack):.1e}" for a in failing)
    return f"{name} does not apply: {reasons}."


Rule = Callable[[EmpiricalRisk, Any, Any], Prediction]
_RULES: dict[type, Rule] = {}


@checked()
def register(model: type) -> Callable[[Rule], Rule]:
    """Registers `rule(risk, model, selection) -> Prediction` for a model class of your own.

    **Example:**

    ```python
    import equinox as eqx


    class Twice(eqx.Module):
        w: jax.Array

        def linear_coefficients(self):
            return 2 * self.w

        def __call__(self, x):
            return self.linear_coefficients() @ x


    @jf.theory.register(Twice)
    def rule(risk, model, selection):
        program = jf.margin.max_margin(risk.data.inputs, risk.data.targets)
        return jf.theory.Prediction(program, "Soudry et al. (2018)", ())
    ```
    """

    def decorate(rule: Rule) -> Rule:
        _RULES[model] = rule
        return rule

    return decorate


@checked()
def predict(risk: EmpiricalRisk, model: Any, selection: Any = None) -> Prediction:
    """The program that the limit of gradient flow solves if attention selects `selection`.

    **Arguments:** `risk`; `model`, of which only type and shapes are used; `selection`, Booleans in the shape of the
    logits or token indices. Linear networks select no tokens; for them the start is used instead.

    **Raises:** `ValueError` naming `model` where no theorem is registered for its class.

    **Example:**

    ```python
    prediction = jf.theory.predict(risk, model, limit.selection)
    jf.margin.solve(prediction.program)
    ```
    """
    return rule_of(model)(risk, model, selection)


def has_rule(model: Any) -> bool:
    """Whether a theorem is registered for a model's class."""
    return any(kind in _RULES for kind in type(model).__mro__)


def rule_of(model: Any) -> Rule:
    """The rule that `predict` uses for a model. Compiled programs depend on it: a rule that is registered again is a
    new key.

    **Raises:** `ValueError` naming `model` where no theorem is registered for its class.
    """
    for kind in type(model).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    known = ", ".join(sorted(kind.__name__ for kind in _RULES))
    raise ValueError(
        f"model: no theorem is registered for {type(model).__name__} (known: {known}); see jaxflow.theory.register"
    )


def attention_assumptions(risk: EmpiricalRisk, model: AbstractAttention) -> tuple[Assumption, ...]:
    """The assumptions of the theorems on one-layer attention that can be checked on the instance."""
    data = _token_data(risk)
    scores = jnp.where(data.visible, token_scores(data, model.head), -jnp.inf)
    top = jax.nn.one_hot(jnp.argmax(scores, axis=-1), scores.shape[-1], dtype=bool)
    # An output that sees one token has no second: its gap is infinite.
    gap = jnp.min(jnp.max(scores, axis=-1) - jnp.max(jnp.where(top, -jnp.inf, scores), axis=-1))
    linear = jnp.asarray(is_linear(model.head))
    loss = jnp.asarray(isinstance(risk.loss, Logistic | Exponential | Correlation))
    return (
        Assumption("every optimal token is unique (Definition 1)", gap > 0, gap),
        Assumption("the head is linear", linear, jnp.where(linear, 0.0, -1.0)),
        Assumption("the loss is strictly decreasing and smooth (Assumption A)", loss, jnp.where(loss, 0.0, -1.0)),
    )


def _token_data(risk: EmpiricalRisk) -> TokenData:
    data = risk.data
    if not isinstance(data, TokenData):
        raise ValueError("risk: attention needs a risk on TokenData")
    return data


def _attention_rule(
    model: type, program: Callable[[TokenData, Any, Any], AbstractProgram], single: str, several: str | None = None
) -> None:
    """Registers a rule by its program of data, selection and model, and its theorem for one output a sequence and for
    several; None: the same."""

    def rule(risk: EmpiricalRisk, model: Any, selection: Any) -> Prediction:
        data = _token_data(risk)
        theorem = single if data.single_query or several is None else several
        return Prediction(program(data, selection, model), theorem, attention_assumptions(risk, model))

    register(model)(rule)


def _factored_norm(data: TokenData, model: FactoredAttention) -> Nuclear:
    d, m = model.K.shape
    # Lemma 1: solutions have rank at most min(n, d); a bound that is no smaller changes nothing.
    return Nuclear() if m >= min(data.labels.size, d) else Nuclear(rank=m)


_SEVERAL = "Tarzanagh et al. (2023), Corollary 2 (App. D, regularisation path): with several outputs a sequence "
_DIAGONAL = ": diagonal (K, Q) converges in direction to the l1-SVM of the selected tokens"
_attention_rule(
    CombinedAttention,
    lambda data, selection, model: attention_svm(data, selection, "frobenius"),
    "Tarzanagh et al. (2023), Theorem 7: from a start close enough to a locally optimal direction, descent on "
    "W converges in direction to the Frobenius-norm (Att-SVM) of the selected tokens",
    _SEVERAL + "W is biased to the Frobenius-norm (SAtt-SVM) of the selected tokens",
)
_attention_rule(
    FactoredAttention,
    lambda data, selection, model: attention_svm(data, selection, _factored_norm(data, model)),
    "Tarzanagh et al. (2023), Theorem 2 (regularisation path) and Sheen et al. (2024), Theorem 5.1 (flow, "
    "aligned start): (K, Q) is biased to the nuclear-norm (Att-SVM*) of the selected tokens",
    _SEVERAL + "(K, Q) is biased to the nuclear-norm (SAtt-SVM) of the selected tokens",
)
_attention_rule(
    DiagonalAttention,
    lambda data, selection, model: attention_svm(data, selection, "l1"),
    "Sheen et al. (2024), Theorem 4.1" + _DIAGONAL,
    # With several nothing is proven, and the program is the one to compare with.
    "Sheen et al. (2024), Theorem 4.1 (stated for one output a sequence)" + _DIAGONAL,
)
_attention_rule(
    PromptAttention,
    lambda data, selection, model: prompt_svm(data, selection, model.K),
    "Ataee Tarzanagh et al. (2023), Max-Margin Token Selection in Attention Mechanism: from a start close enough "
    "to a locally optimal direction, descent on the prompt converges in direction to the l2 SVM of its tokens",
)
