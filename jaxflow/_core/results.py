"""How a numerical method ended: the results of Lineax, Optimistix and Diffrax, and those of this library."""

import warnings

import diffrax

# Success has no message in Diffrax, and a rule that stops is an event there. Equinox warns where a message changes.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Enumeration has duplicate incompatible values")

    class RESULTS(diffrax.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
        """Diffrax's results and our own. Batchable; compare with `==`, look up messages with `RESULTS[...]`.

        **Example:**

        ```python
        path = jf.integrate(risk, model, clock="log_time", until=1.0)
        assert path.result == jf.RESULTS.successful
        ```
        """

        successful = "successful"
        event_occurred = "stopped by a rule"
        gradient_underflow = (
            "The gradient of an opaque loss fell below the smallest normal number, so the flow cannot be followed "
            "further. Give its margins to `EmpiricalRisk.from_margins`, whose gradient is carried on a logarithmic "
            "scale."
        )
        nonfinite_data = "Data or initial weights contain NaN or infinite entries; nothing was integrated."
        sliding = (
            "The flow stays on kinks, where its field jumps: the steps of a smooth method shrink there and get "
            "nowhere. `solver=jaxflow.Filippov()` follows the kinks, in coordinates `Weights` and `Scores`; where it "
            "ends so itself, too many kinks meet at this point."
        )


def good(result: RESULTS):
    """True where the method reached its end, or was stopped by a rule."""
    return (result == RESULTS.successful) | (result == RESULTS.event_occurred)
