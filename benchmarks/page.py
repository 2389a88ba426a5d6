"""The page of benchmarks, written from their results: python benchmarks/page.py > docs/benchmarks.md.

No number of that page is typed: a test holds the page to what this prints. A table is a `Table`; its columns are
`FIELD|FORM`, the field of a row (`own_gap.median`: of a row's row) in one of `FORMS`, or a function of the row.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from _forms import FORMS, Row, count, far_flows, flow_ratios, grown, masked_rows, others, rounded, sizes

RESULTS = Path(os.environ.get("JAXFLOW_RESULTS", Path(__file__).resolve().parent / "results"))


Show = str | Callable[[Row], Any]


def cell(row: Row, show: Show) -> str:
    """What a column shows of a row; nothing where the row has no such field."""
    if callable(show):
        return str(show(row))
    field, _, form = show.partition("|")
    value: Any = row
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return "" if value is None else FORMS[form](value)


class Table(NamedTuple):
    """A section of the page: title, text, the columns, the record and the script that wrote it.

    `rows(record)`: the rows of the table, where they are not the record's own; `text`: or a function of the record.
    """

    record: str
    columns: dict[str, Show]
    title: str | None = None
    text: str | Callable[[Row], str] = ""
    rows: Callable[[Row], Iterable[Row]] = lambda found: found["rows"]
    script: str | None = None

    def section(self) -> str:
        """As Markdown."""
        path = RESULTS / f"{self.record}.json"
        heading = f"## {self.title}" if self.title else ""
        script = f"`{self.script or f'benchmarks/{self.record}.py'}`"
        if not path.exists():
            return f"{heading}\n\n{self.text}\n\n*{script}*: **not measured yet**."
        found = json.loads(path.read_text(encoding="utf-8"))
        if self.record == "scaling":
            found = found[(self.script or "").split()[-1]]
        return "\n\n".join(
            part
            for part in (
                heading,
                self.text if isinstance(self.text, str) else self.text(found),
                markdown(self.columns, self.rows(found)),
                f"*{script}; {place(found['environment'])}.*",
            )
            if part
        )


def markdown(columns: dict[str, Show], rows: Iterable[Row]) -> str:
    """A table."""
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[cell(row, show) for show in columns.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def place(environment: Row) -> str:
    """Where and when something was measured."""
    words = [environment.get("processor", environment["machine"]), f"{environment['cpu_count']} cores"]
    words += [] if environment.get("device", "cpu") == "cpu" else [environment["device"]]
    words += [f"JAX {environment['versions']['jax']}"]
    words += [environment["started"][:10]] if "started" in environment else []
    if "load_average" in environment:
        words += [f"load average {environment['load_average']:.1f} at the start"]
    return ", ".join(words)


HEAD = """# Benchmarks

Every number of this page is read from a file of `benchmarks/results`. `python benchmarks/page.py` prints the page, and
a test compares the page with the files. The line under each table names the machine and the day: compare numbers within
one table, not between tables. *First run* includes compilation."""

TAIL = """## Run them yourself

```bash
make bench                  # every script at a small size, and this page with its numbers: out/bench; an hour at most
make bench SCALE=full       # at the sizes of this page: hours
make bench-gpu SCALE=full   # the scripts for an accelerator (needs one), with a million limits
make referee                # every instance of the referee: hours
```

The first lines of each script describe what it measures and how to run it alone. Install the peers with `pip install
'.[bench]'`, or name a folder of packages by `--peers`. The folder of the page also has a table of the scripts that ran
and of those that did not (`suite.json`), and the ratios that are below the committed ones (`worse.txt`, by
`benchmarks/compare.py`; at a small size ratios are lower for that reason alone). A result records versions, processor
and load."""


def installed(show: str) -> Callable[[Row], str]:
    """Text in place of the number where a peer is not installed."""
    return lambda row: "not installed" if "not_installed" in row else cell(row, show)


VERDICTS = ("right", "undecided", "unverified", "wrong")


def referee_rows(found: Row) -> Iterable[Row]:
    """The rows of each model, and their sums."""
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["model"] == model]
        yield from rows
        sums = {word: sum(row[word] for row in rows) for word in ("instances", *VERDICTS)}
        yield {"model": f"**{model}**", "kind": "all", **sums}


def referee_text(found: Row) -> str:
    """What was judged, and the totals."""
    total = {word: sum(row[word] for row in found["rows"]) for word in VERDICTS}
    regular = [row for row in found["rows"] if row["regular"]]
    undecided = sum(row["undecided"] for row in regular) / sum(row["instances"] for row in regular)
    shares = {f"{row['model']}, {row['kind']}": row["undecided"] / row["instances"] for row in regular}
    over = ", ".join(f"{name} ({100 * share:.2g}%)" for name, share in shares.items() if share > 0.01)
    return (
        f"{count(sum(total.values()))} instances, drawn and judged without the library: the program of the claimed "
        "tokens is solved again or bounded by its dual, Definition 2 is decided again, and a plain integration "
        f"follows the flow. **{total['wrong']} wrong**; {count(total['undecided'])} undecided (nothing is claimed), "
        f"{100 * undecided:.2g}% on regular data; for {total['unverified']} the referee cannot decide (a start so far "
        "out that an explicit method does not move it, or a path that has not settled at its end). Kinds without a row "
        "were not run. The record has the `--scale` that sets the number of instances, and the commit."
        + (f" Regular kinds with more than 1% undecided: {over}." if over else "")
    )


def studies_text(found: Row) -> str:
    """What the ways are, and where the last one was measured."""
    own = found.get("own_environment")
    return (
        "The queues of lanes of a study (*engine*, in double precision and with scouts in single precision) compared "
        "with one integration mapped over a batch. *Own distribution*: the same draws by an experiment of one's own; "
        "its time is over that of the built-in experiment in the same run" + (f" ({place(own)})." if own else ".")
    )


TRAINED: dict[str, Show] = {"trained": "model", "n, T, d": "n_T_d|sizes"}
WEIGHTS: dict[str, Show] = {"weights": "parametrization"}
BLOCKS: dict[str, Show] = {
    **{"cell": "cell", "instances": "instances|count", "first run": "first_s|seconds", "again": "again_s|seconds"},
    **{"others": "other_s|seconds", "outcomes": "outcomes|ended", "most steps": "worst_steps|count"},
    "over (5, 5, 4)": "over_554|rounded",
}
BLOCKS_TEXT = (
    "A block of `TokenSelection` for each cell. The first run compiles what the process has not compiled yet. The last "
    "column is the time of other instances over their time in the cell (5, 5, 4)."
)
TABLES: list[Table] = [
    Table(
        "latency",
        {"what": "what", "compiled programs": "cache", "seconds": "seconds|seconds",
         "seconds of processor": "processor|seconds"},
        "Time to a first result",
        "From the start of the process. *Cold*: nothing compiled before; *warm*: compiled programs are on disk.",
    ),
    Table(
        "margin_accuracy",
        {"norm": "norm", "n, T, d": "n_T_d|sizes", "instances": "instances|count", "solved": "results.optimal|count",
         "certified to have no solution": "results.infeasible|count", "others": others,
         "largest gap": "largest_gap_of_optimal|power"},
        "Max-margin programs",
        "The programs of random tokens. *Solved*: the certified relative gap is below the tolerance (1e-12 in the "
        "Frobenius norm, 1e-10 in the others).",
        lambda found: [row for row in found["rows"] if row.get("benchmark") == "certified gap"],
    ),
    Table(
        "program_peers",
        {"norm": "norm", "n, T, d": "n_T_d|sizes", "method": "method",
         "programs a second": installed("per_second|rounded"), "ours over its": "ratio|rounded",
         "to reach": "ratio_to_reach|rounded",
         "largest difference": lambda row: cell(row, "difference.max|power") or cell(row, "gap.max|power"),
         "failed": lambda row: f"{sum(row.get('failures', {}).values())} of {cell(row, 'instances|count') or 0}"},
        "Programs beside other solvers",
        "Our batch under `vmap` is measured between two measurements of each peer; the table has the peer's faster "
        "one. *Difference*: the relative difference of the norm of the answer at margin one from ours; in our own "
        "rows, the certified gap. Times include setting up the program; the record has the settings. DAQP and OSQP "
        "are C libraries, called program by program.",
    ),
    Table(
        "flow_peers",
        {**TRAINED, "log t": "log_time|rounded", "error": "error|power", "ours, ms": "ours_s|ms",
         "vmap(diffeqsolve) (to reach 20)": "vmap(diffeqsolve)", "SciPy (to reach 20)": "SciPy",
         "torchode (to reach 1)": "torchode", "torchdiffeq (to reach 1)": "torchdiffeq"},
        "Flows beside other solvers",
        "Flows from fixed random starts to a log t that physical time reaches. A peer's number is its time for an "
        "instance over ours. Each uses its fastest method and the cheapest tolerance that reaches the error of the "
        "row: the median relative error of W, or of the products β of a diagonal network (n, d). *None*: no tolerance "
        "from 1e-3 to 1e-9 reached that error. From a start of e^-10000 all peers stay at zero, and the reference is "
        "the library itself "
        "at a tolerance of 1e-12. Absolute tolerances are relative to a small start. SciPy takes one instance at a "
        "time, the others a batch.\n\n"
        "![Seconds an instance against the relative error, for the library's clocks, vmapped diffeqsolve, SciPy, "
        "torchode and torchdiffeq](images/work-precision.webp)",
        flow_ratios,
    ),
    Table(
        "flow_peers",
        {"method": "method", "answered": "answered", "error, worst of the cases' medians": "error|power",
         "ms an instance": "times", "why not": "why"},
        None,
        "The same flows to log t = 100, at a tolerance of 1e-6. Physical time does not reach it: gradients fall below "
        "the rounding errors of the derivative of the loss, and steps stay short.",
        far_flows,
    ),
    Table(
        "limit_peers",
        {**TRAINED, "method": "method", "instances": "instances",
         "a second": installed("shown|rounded"), "ours over its": "ratio|rounded",
         "to reach": "ratio_to_reach|rounded", "own gap, median": "own_gap.median|power",
         "certified to 1e-8": lambda row: f"{row['certified']} of {row['instances']}" if "certified" in row else ""},
        "Limits beside descent elsewhere",
        "The rate of ours is that of certified limits. The rate of the others is that of runs of 2,000 steps, "
        "certified or not; their gaps were computed afterwards, from the multipliers at their ends. The published "
        "protocol runs one instance after the other in PyTorch, with `autograd`.",
        lambda found: [
            row | {"shown": row.get("certified_per_second", row.get("ends_per_second"))} for row in found["rows"]
        ],
    ),
    Table(
        "crowded",
        {"W or (K, Q): n, T, d": "cell", "instances": "instances|count", "undecided": "undecided",
         "steps, median": "median_steps|rounded", "most of a decided one": "worst_decided_steps|count",
         "ms": "milliseconds|rounded", "confirmed": "confirmed", "open": "open", "against": "against"},
        "Crowded cells",
        "Cells with few dimensions for many tokens: paths are stiff, selections are metastable, and some flows end at "
        "finite points. `find_limit` ran with its defaults. The first definite answers were compared with Kvaerno5 "
        "from the start at a tolerance of 1e-9 (*open*: Kvaerno5 ran out of 6,000 steps).",
    ),
    Table(
        "ways",
        {"cell": "cell", "instances": "instances|count", "outcomes alone": "outcomes|ended", "jit": "jit.other|length",
         "vmap": "vmap.other|length", "study": "study.other|length", "replay": "replay.other|length",
         "one of two undecided":
             lambda row: sum(len(row[way]["one_undecided"]) for way in ("jit", "vmap", "study", "replay"))},
        "One instance in five ways",
        "Instances whose outcome or tokens differ from those of `find_limit` alone: under `jit`, under `vmap`, in a "
        "block of a study and in its replay. *twice*: the first token of every sequence is duplicated.",
    ),
    Table("blocks", BLOCKS, "Blocks of a study", BLOCKS_TEXT),
    Table("blocks_gpu", BLOCKS, "Blocks of a study on a GPU", BLOCKS_TEXT, script="benchmarks/blocks.py"),
    Table(
        "own_gaps",
        {"model": "model", "size": "size|sizes", "instances": "instances", "asked for": "gap|power",
         "reached": "reached", "outcomes": "outcomes|ended", "own gap, median": "own_gap.median|power"},
        "How far a flow certifies itself",
        "`find_limit` follows each flow until the duality gap of its own direction and multipliers is at most the gap "
        "asked for.",
    ),
    Table(
        "studies",
        {"trained": "parametrization", "n, T, d": lambda row: sizes([row[name] for name in "nTd"]), "way": "way",
         "instances": "instances|count", "a second": "instances_per_s|rounded",
         "time over the engine's":
             lambda row: cell(row, "time_over_engine|rounded") or cell(row, "time_over_built_in|rounded"),
         "first run, seconds": "first_run_s|seconds",
         "other tokens than the engine": "other_tokens|count",
         "another outcome": "other_outcomes|count", "outcomes": "outcomes|ended"},
        "Studies",
        studies_text,
    ),
    Table(
        "own_model",
        {"d": "d", "seed": "seed", "outcomes": "outcomes|ended", "residual below 1e-6": "residual <= 1e-6",
         "sliding kinks, median": "sliding kinks.median|rounded", "steps, median": "exact steps.median|rounded",
         "largest": "exact steps.max|count"},
        "Models of your own",
        "Two-layer ReLU networks of 16 units on 20 data on two sides of a plane; see [your own model](own-model.md).",
    ),
    Table("real_sizes", {"weights": "weights|count", "activation": "activation", "data": "data|count",
          "classes": "classes", "outcome": "outcome",
          "residual": "residual|power", "margins with multipliers": "support", "sliding kinks": "kinks|count",
          "seconds": "seconds|seconds", "of a processor": "processor_seconds|seconds", "GiB": "memory|rounded",
          "processor": "processor", "load": "load_average|rounded"}, "Networks of real sizes",
          "Two layers of ReLU or of its square (relu2, smooth) on digits of 64 pixels, with compilation, to a gap of "
          "1e-4, which asks for residuals of 1e-6. Two classes: 3 and 8, or, of 1,000 data, digits below five and the "
          "others. *Load*: of the machine, at the start of the row."),
    Table(
        "claims",
        {"what": "case", "instances": "instances|count", "outcomes": "outcomes|ended", "undecided": "undecided",
         "wrong": "wrong", "largest difference": "difference|power", "reference": "reference"},
        "Claims beside references",
        "Linear models on integer data, whose minima a linear program decides; the support vector machine of 1,000 "
        "data in 20 dimensions by CVXPY; two heads in parallel, each certified by its own dual to the default gap.",
    ),
    Table(
        "masked",
        {"model": "model", "hidden tokens are": "hidden", "more tokens": "extra|sizes", "variants": "variants",
         "other outcome": "other_outcomes", "other tokens": "other_tokens",
         "largest difference": "difference|power"},
        "Padding under a mask",
        "Instances of three sequences of four tokens, and variants with additional hidden tokens, at the end and in "
        "between. *Difference*: the relative difference of the flow's direction or point from that of the instance "
        "without padding.",
        masked_rows,
    ),
    Table(
        "printed_errors",
        {"family": "family", "printed": "words", "instances": "instances|count", "with a point": "judged|count",
         "covered": "covered|count", "largest true over printed": "ratio|power", "largest true error": "true|power",
         "printed, median": "error|power"},
        "Errors of limit points",
        "The true relative error beside `limit.error`, on families whose limit point is known without the library: "
        "from its equation in extended precision, or from a plain integration at a tolerance of 1e-13. *Printed*: `at "
        "most` for a bound, `about` for an estimate. *Covered*: the true error is at most the printed one.",
    ),
    Table(
        "classes",
        {"d": "d", "classes": "classes", "data": "kind", "instances": "instances", "outcomes": "outcomes|ended",
         "direction from CVXPY's, median": "direction.median|power", "largest": "direction.max|power",
         "point from SciPy's": "point.max|power", "excess": "excess|power", "first, s": "first_seconds|seconds"},
        "Many classes",
        "Linear models of 20 data under cross-entropy: the multiclass support vector machine, or the minimum; largest "
        "differences are over all instances. *Digits*: the 1,797 images of scikit-learn.",
    ),
    Table(
        "next_tokens",
        {"contexts": "kind", "instances": "instances", "outcomes": "outcomes|ended", "components": "components|",
         "direction from CVXPY's, median": "direction.median|power", "largest": "direction.max|power",
         "point from CVXPY's, largest": "point.max|power", "from the log-odds, largest": "odds.max|power"},
        "Next tokens",
        "Linear models after 10 contexts of one to four continuations, and attention on 10 sequences of 6 words; see "
        "[your own model](own-model.md). *Components*: limits that split words as strongly connected components do. "
        "The largest differences are over all instances, including undecided ones.",
    ),
    Table(
        "optimisers",
        {"problem": "problem", "optimiser": "optimiser", "its norm": "norm",
         "l2": grown("l2"), "linf": grown("linf"), "spectral": grown("spectral"), "nuclear": grown("nuclear"),
         "nearest to its own": "nearest_to_its_own|share", "own falls": "own_falls|share",
         "others fall": "others_fall|share"},
        "Which margin an optimiser maximises",
        "Median excess of the direction over the largest margin in each norm after 100 and after 5,000 steps, of those "
        "of 200 random problems that have a margin by then; see [Which margin does my optimiser "
        "maximise?](optimisers.md). *Fall*: problems whose excess "
        "falls by a third or more from step 1,000 to 5,000, for the norm of the optimiser and for the one of the "
        "others where most do. In brackets: intervals of 95% (Wilson), in percent.",
    ),
    Table(
        "mirror",
        {"p": lambda row: f"{row['p']}, Schatten" if row.get("norm") else row["p"], "inputs": "d",
         "instances": "instances", "outcomes": "outcomes|ended",
         "largest excess over the other optimum": "excess.max|power",
         "largest distance from its direction": "apart.max|power",
         "steps, median": "steps.median|count", "most": "steps.max|count"},
        "Mirror flows",
        "Logistic loss on 20 separable data of 10 and of 30 normal inputs, from zero, with the potential |θ|_p^p/p: "
        "the flow's direction beside the ℓp max-margin program of CVXPY (power cones). Clarabel's directions have "
        "about the square root of its digits. *Schatten*: inputs are normal matrices, potentials those of singular "
        "values, and the other optimum is SciPy's (SLSQP).",
    ),
    Table(
        "completion",
        {"flow": "flow", "start": "scale|power", "masks": "instances", "program solved": "solved",
         "largest gap": "program_gap.max|power", "its solution is the matrix": "recovered",
         "positive": lambda row: row["positive"] if row["flow"] == "U U" else "",
         "outcomes": "outcomes|ended", "median excess": "excess.median|power", "largest": "excess.max|power",
         "within 1e-3 of the least": "least", "ends at the matrix": "truth"},
        "Completion of a matrix",
        "Matrices 10 x 10 of rank two with six of ten entries known: the program of least nuclear norm, and flows of "
        "the squared loss from normal starts of some size. *Positive*: solutions of the program that are positive "
        "semidefinite, as every limit of U U is. *Ends at the matrix*: within 1e-3 of the one that the entries are of.",
    ),
    Table(
        "batches",
        {"what": "case", "lanes": "lanes", "with an answer": "decided", "outcomes that differ": "outcomes differ",
         "largest difference": "largest difference|power", "batch, ms": "batch_s|ms",
         "over all single calls": "ratio_to_singles|rounded",
         "over the slowest one, times lanes": "ratio_to_slowest|rounded"},
        "Batches",
        "Ordinary instances mixed with NaN, infinities, duplicates, ties, zeros, sizes of 1e150 and 1e-150, and one "
        "label only. *Difference*: the difference of the numbers of a lane from those of a single call, relative to "
        "the largest of these numbers.",
    ),
    Table(
        "memory",
        {"calls": "calls|count", "memory maps": "maps|count", "resident, MB": "resident_mb|rounded",
         "programs compiled": "programs|count", "live arrays": "live_arrays|count"},
        "Memory after many calls",
        lambda found: (
            f"`find_limit` for W in one process, over {found['shapes']} shapes; every round calls each shape once. "
            "Linux gives a process 65,530 memory maps."
        ),
    ),
    Table(
        "referee",
        {"model": "model", "instances are": "kind", "number": "instances|count",
         **{word: f"{word}|count" for word in VERDICTS}},
        "A referee",
        referee_text,
        referee_rows,
        script="tests/referee/run.py",
    ),
    Table(
        "engines",
        {"model": "model", "instances are": "kind", "number": "instances|count", "the same claim": "agree|count",
         "other claims": "differ|length",
         "seconds over the other's": lambda row: rounded(row["seconds"] / row["seconds_old"])},
        "Two versions of the engine",
        lambda found: (
            f"The claims of this version and of commit {found['against']} on the same regular instances of the "
            "referee: outcome, tokens, and direction or point. Claims that differ are judged by the referee, and are "
            "listed in the record. Seconds are those of one compiled program for each kind, compilation included."
        ),
        script="tests/referee/engines.py --against FOLDER",
    ),
    Table(
        "scaling",
        {**WEIGHTS, "instances": "batch|count", "ms an instance": "ms_an_instance|rounded",
         "memory, MiB": "memory_MiB|count", "first run, s": "first_run_s|rounded", "outcomes": "outcomes|ended"},
        "Scaling",
        "![Milliseconds an instance against batch, d, number of tokens, log log t, log α, and instances a second "
        "against workers](images/scaling.webp)\n\n"
        "All outcomes of a study of so many instances, in the blocks of a CPU. *Memory* is the largest memory of the "
        "process minus its memory before. It depends on the block and its programs, not on the number of instances.",
        script="benchmarks/scaling.py --only batches",
    ),
    Table(
        "scaling",
        {**WEIGHTS, "n, T, d": "n_T_d|sizes", "instances": "instances", "ms, median": "seconds|ms",
         "ms after the reduction": "seconds_after_the_reduction|ms", "outcomes": "outcomes|ended"},
        None,
        "`find_limit` at n = T = 5, in d dimensions and after the reduction to the span of the data.",
        script="benchmarks/scaling.py --only dimensions",
    ),
    Table(
        "scaling",
        {**WEIGHTS, "n, T, d": "n_T_d|sizes", "n T": lambda row: row["n_T_d"][0] * row["n_T_d"][1],
         "ms, median": "seconds|ms", "outcomes": "outcomes|ended"},
        None,
        "`find_limit` at d = 10 by the number of tokens.",
        script="benchmarks/scaling.py --only tokens",
    ),
    Table(
        "scaling",
        {**WEIGHTS, "gap asked for": "gap|power", "decided": lambda row: f"{row['decided']} of {row['instances']}",
         "log log t, median": "log_log_time_median|rounded", "steps, median": "steps_median|rounded",
         "ms an instance": "ms_an_instance|rounded"},
        None,
        "How far the flow is followed until its own duality gap is the gap asked for.",
        script="benchmarks/scaling.py --only accuracies",
    ),
    Table(
        "scaling",
        {"log α": "log_alpha|rounded", "instances": "instances|count", "ms, median": "seconds|ms",
         "steps, most": "steps|count"}, None,
        "Incremental learning past all stages of a diagonal network (p = 6), from a start of size α.",
        script="benchmarks/scaling.py --only initial_scales",
    ),
    Table(
        "scaling",
        {"executor": "executor", "workers": "workers", "instances": "instances|count", "a second": "a_second|count",
         "over one worker": "speedup|rounded"},
        None,
        "A study of W by workers of one core each: host devices of one process, and processes of Dask. The rate is "
        "that of the instances that a long run has in addition to a short one.",
        script="benchmarks/scaling.py --only workers",
    ),
    Table(
        "scaling",
        {**WEIGHTS, "lanes": "width|count", "iterations": "iterations|count",
         "steps of the longest instance": "longest_instance|count", "ratio": "iterations_over_longest|rounded"},
        None,
        "How often a device steps its lanes for a block of 4,096 instances, first round. Blocks of that size are timed "
        "[on a GPU](#blocks-of-a-study-on-a-gpu) above.",
        script="benchmarks/scaling.py --only iterations",
    ),
    Table(
        "million",
        {"device": "device", "trained": "parametrization", "instances": "instances|count",
         "first block, s": "first_block_s|seconds", "all, s": "seconds|seconds",
         "a second": "a_second|count", "ended": "outcomes|ended"}, "A million limits",
        "1,000,000 limits of W and 100,000 of (K, Q) with n = T = 5, d = 10: tokens selected, directions certified, "
        "programs solved. The first block compiles. The target for an accelerator is one minute for each of the two.",
    ),
]  # fmt: skip


if __name__ == "__main__":
    print("\n\n".join([HEAD, *(table.section() for table in TABLES), TAIL]))
