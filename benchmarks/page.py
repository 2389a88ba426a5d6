"""The page of benchmarks, written from their results: python benchmarks/page.py > docs/benchmarks.md.

No number of that page is typed: a test holds the page to what this prints.
"""

from typing import Any

from _forms import (
    RESULTS,
    count,
    ended,
    markdown,
    maybe,
    milliseconds,
    power,
    results,
    rounded,
    seconds,
    section,
    sizes,
)
from page_scaling import scaling


def page() -> str:
    """The whole page as Markdown."""
    return (
        "\n\n".join(
            [
                HEAD,
                waiting(),
                programs(),
                program_peers(),
                flow_peers(),
                limit_peers(),
                limits(),
                crowded(),
                ways(),
                blocks(),
                gaps(),
                studies(),
                own_models(),
                batches(),
                memory(),
                referee(),
                scaling(),
                million(),
                TAIL,
            ]
        )
        + "\n"
    )


HEAD = """# Benchmarks

Every number of this page is read from a file of `benchmarks/results`. `python benchmarks/page.py` prints the page, and
a test compares the page with the files. Times were measured on the machine and on the day that are named under each
table: compare numbers within one table, not between tables. *First run* includes compilation."""

TAIL = """## Run them yourself

```bash
make bench                  # every script at a small size, and this page with its numbers: out/bench
make bench SCALE=full       # at the sizes of this page: hours
make bench-gpu SCALE=full   # the scripts for an accelerator (needs one), with a million limits
```

The first lines of each script describe what it measures and how to run it alone. Install the peers with `pip install
'.[bench]'`, or name a folder of packages by `--peers`. The folder of the page also has a table of the scripts that ran
and that did not (`suite.json`) and the ratios that are below the committed ones (`worse.txt`, by
`benchmarks/compare.py`; ratios of a small size are lower for that reason alone). A result records versions, processor,
load and, if requested, the commit.
"""


def waiting() -> str:
    """The time until a first result."""
    found = results("latency")
    rows = [(row["what"], row["cache"], seconds(row["seconds"]), seconds(row["processor"])) for row in found["rows"]]
    table = markdown(("what", "compiled programs", "seconds", "seconds of processor"), rows)
    return section(
        "Time to a first result",
        "From the start of the process. *Cold*: nothing compiled before; *warm*: compiled programs are on disk.",
        table,
        found,
        "latency.py",
    )


def programs() -> str:
    """Max-margin programs: certified gaps, and how many a second."""
    found = results("margin_accuracy")
    exact = [row for row in found["rows"] if row.get("benchmark") == "certified gap"]
    rows = []
    for row in exact:
        ended = row["results"]
        solved, others = ended["optimal"], sum(ended.values()) - ended["optimal"] - ended["infeasible"]
        gap = power(row["largest_gap_of_optimal"])
        rows.append((row["norm"], sizes(row), count(row["instances"]), count(solved), count(ended["infeasible"]),
                     count(others), gap))  # fmt: skip
    columns = ("norm", "n, T, d", "instances", "solved", "certified to have no solution", "others", "largest gap")
    first = section(
        "Max-margin programs",
        "The programs of random tokens. *Solved*: the certified relative gap is below the tolerance (1e-12 in the "
        "Frobenius norm, 1e-10 else).",
        markdown(columns, rows),
        found,
        "margin_accuracy.py",
    )
    found = results("margin_throughput")
    rows = [
        (row["norm"], sizes(row), rounded(row["per_second"]), row["reference"], rounded(row["reference_per_second"]),
         rounded(row["ratio"]))
        for row in found["rows"]
        if "ratio" in row and "norm" in row
    ]  # fmt: skip
    columns = ("norm", "n, T, d", "programs a second", "reference", "its programs a second", "ratio")
    second = section(None, "Batches under `vmap`, against CVXPY on the same programs.", markdown(columns, rows), found,
                     "margin_throughput.py")  # fmt: skip
    return f"{first}\n\n{second}"


def program_peers() -> str:
    """Max-margin programs a second, beside other solvers."""
    found = results("program_peers")
    rows = []
    for row in found["rows"]:
        name = (row["norm"], sizes(row), row["method"])
        if "not_installed" in row:
            rows.append((*name, "not installed", "", "", "", ""))
            continue
        off = row.get("difference", row.get("gap"))
        failed = sum(row.get("failures", {}).values())
        rows.append(
            (
                *name,
                rounded(row["per_second"]),
                maybe(rounded, row.get("ratio")),
                maybe(rounded, row.get("ratio_to_reach")),
                maybe(power, off["max"]),
                f"{failed} of {row['instances']:,}",
            )
        )
    columns = (
        "norm",
        "n, T, d",
        "method",
        "programs a second",
        "ours over its",
        "to reach",
        "largest difference",
        "failed",
    )
    text = (
        "Our batch under `vmap` is measured between two measurements of each peer; the table has the faster one. "
        "*Difference*: of the norm of the answer at margin one from ours, relative; for our own rows the certified "
        "gap. Times include setting up the program; the record has the settings. DAQP and OSQP are C libraries, called "
        "program by program."
    )
    return section("Programs beside other solvers", text, markdown(columns, rows), found, "program_peers.py", load=True)


def flow_peers() -> str:
    """Following a flow, beside other solvers."""
    found = results("flow_peers")
    shown = (1e-3, 1e-5, 1e-7)
    far = max(row["log_time"] for row in found["ratios"])
    peers = list(dict.fromkeys((row["peer"], row["ratio_to_reach"]) for row in found["ratios"]))
    rows = []
    for row in found["ratios"]:
        if row["log_time"] != far and row["error"] in shown and row["peer"] == peers[0][0]:
            key = [row[name] for name in ("model", "n_T_d", "log_time", "error")]
            same = {
                other["peer"]: other["ratio"]
                for other in found["ratios"]
                if [other[name] for name in ("model", "n_T_d", "log_time", "error")] == key
            }
            rows.append(
                (
                    row["model"],
                    sizes(row),
                    rounded(row["log_time"]),
                    power(row["error"]),
                    milliseconds(row["ours_s"]),
                    *("none" if same[peer] is None else rounded(same[peer]) for peer, _ in peers),
                )
            )
    columns = (
        "trained",
        "n, T, d",
        "log t",
        "error",
        "ours, ms",
        *(f"{peer} (to reach {target:g})" for peer, target in peers),
    )
    text = (
        "Flows from fixed random starts to a log t that physical time reaches. A peer's number is its time for an "
        "instance over ours, each at its cheapest tolerance and by its fastest method with that relative error in "
        "the median, of W or of the products β of a diagonal network (n, d). *None*: no tolerance from 1e-3 to 1e-9 "
        "reached that error. From a start of e^-10000 all peers stay at zero, and the reference is the library itself "
        "at a tolerance of 1e-12. Absolute tolerances are relative to a small start. SciPy takes one instance at a "
        "time, the others a batch.\n\n"
        "![Seconds an instance against the relative error, for the library's clocks, vmapped diffeqsolve, SciPy, "
        "torchode and torchdiffeq](images/work-precision.webp)"
    )
    first = section("Flows beside other solvers", text, markdown(columns, rows), found, "flow_peers.py", load=True)
    rows = []
    asked = [row for row in found["rows"] if row.get("log_time") == far and "answered" in row]
    for method in dict.fromkeys(row["method"] for row in asked):
        some = [row for row in asked if row["method"] == method]
        answered, instances = (sum(row[name] for row in some) for name in ("answered", "instances"))
        errors = [row["error"]["median"] for row in some if row["error"]["median"] is not None]
        times = [row["s_per_instance"] for row in some]
        whys = dict.fromkeys(why for row in some for why in row["failures"])
        rows.append(
            (
                method,
                f"{answered} of {instances}",
                maybe(power, max(errors, default=None)),
                f"{milliseconds(min(times))} to {milliseconds(max(times))}",
                ", ".join(whys),
            )
        )
    columns = ("method", "answered", "error, worst of the cases' medians", "ms an instance", "why not")
    text = (
        f"The same flows to log t = {far:g}, at a tolerance of {power(row_tolerance(found, far))}. "
        "Physical time does not reach it: "
        "gradients fall below the rounding errors of the derivative of the loss, and steps stay short."
    )
    return f"{first}\n\n{section(None, text, markdown(columns, rows), found, 'flow_peers.py', load=True)}"


def row_tolerance(found: dict[str, Any], log_time: float) -> float:
    """The tolerance of the rows to a log time."""
    return next(row["tolerance"] for row in found["rows"] if row.get("log_time") == log_time)


def limit_peers() -> str:
    """Certified limits, beside descent."""
    found = results("limit_peers")
    rows = []
    for row in found["rows"]:
        name = (row["model"], sizes(row), row["method"])
        if "not_installed" in row:
            rows.append((*name, "not installed", "", "", "", "", ""))
            continue
        rows.append(
            (
                *name,
                row["instances"],
                rounded(row.get("certified_per_second", row["ends_per_second"])),
                maybe(rounded, row.get("ratio")),
                maybe(rounded, row.get("ratio_to_reach")),
                maybe(power, row["own_gap"]["median"]),
                f"{row['certified']} of {row['instances']}",
            )
        )
    columns = (
        "trained",
        "n, T, d",
        "method",
        "instances",
        "a second",
        "ours over its",
        "to reach",
        "own gap, median",
        "certified to 1e-8",
    )
    text = (
        "Ours: certified limits a second. The others: runs of 2,000 steps a second, certified or not; their gaps were "
        "computed afterwards, from the multipliers at their ends. The published protocol runs one instance "
        "after the other in PyTorch, with `autograd`."
    )
    return section("Limits beside descent elsewhere", text, markdown(columns, rows), found, "limit_peers.py", load=True)


def limits() -> str:
    """The flow against gradient descent."""
    found = results("run_full")
    rows = [
        (row["model"], sizes(row), row["method"], count(row["instances"]), power(row["own_gap"]["median"]),
         row["own_gap_within"]["1e-03"], row["own_gap_within"]["1e-08"], rounded(row["steps"]["median"]),
         seconds(row["run_s_per_instance"]))
        for row in found["limits"]
    ]  # fmt: skip
    columns = ("trained", "n, T, d", "method", "instances", "own gap, median", "below 1e-3", "below 1e-8",
               "steps, median", "seconds an instance")  # fmt: skip
    text = (
        "The *own gap* is the duality gap at the end of the method, by its own multipliers. Descent is cheaper and "
        "ends far from the limit; the flow certifies its end. This record predates the implicit steps for "
        "(K, Q); the tables below have newer numbers."
    )
    return section("Limits: the flow against descent", text, markdown(columns, rows), found, "run.py --scale full")


def crowded() -> str:
    """Limits where tokens are many for their dimensions."""
    found = results("crowded")
    words = ("confirmed", "open", "against")
    lines = [
        (row["cell"], count(row["instances"]), str(row["undecided"]), rounded(row["median_steps"]),
         count(row["worst_decided_steps"]), rounded(row["milliseconds"]), *(str(row[word]) for word in words))
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("W or (K, Q): n, T, d", "instances", "undecided", "steps, median", "most of a decided one", "ms", *words)
    text = (
        "Few dimensions for many tokens: paths are stiff, selections metastable, and some flows end at finite points. "
        "`find_limit` with its defaults; the first definite answers are compared with Kvaerno5 from the start at a "
        "tolerance of 1e-9 (*open*: Kvaerno5 ran out of 6,000 steps)."
    )
    return section("Crowded cells", text, markdown(columns, lines), found, "crowded.py", load=True)


def ways() -> str:
    """One instance in five ways."""
    found = results("ways")
    names = ("jit", "vmap", "study", "replay")
    lines = [
        (row["cell"], count(row["instances"]), ended(row["outcomes"]), *(str(len(row[n]["other"])) for n in names),
         str(sum(len(row[n]["one_undecided"]) for n in names)))
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("cell", "instances", "outcomes alone", *names, "one of two undecided")
    text = (
        "Instances whose outcome or tokens are other than those of `find_limit` alone: under `jit`, under `vmap`, in a "
        "block of a study and in its replay. *twice*: every first token is there a second time."
    )
    return section("One instance in five ways", text, markdown(columns, lines), found, "ways.py", load=True)


def blocks() -> str:
    """Blocks of a study in crowded cells, on a CPU and on an accelerator."""
    text = (
        "A block of `TokenSelection` for each cell: the first run compiles what the process has not compiled yet, the "
        "last column is the time of other instances over that of (5, 5, 4)."
    )
    parts = []
    for name in ("blocks", "blocks_gpu"):
        found = results(name)
        lines = [
            (row["cell"], count(row["instances"]), seconds(row["first_s"]), seconds(row["again_s"]),
             seconds(row["other_s"]), ended(row["outcomes"]), count(row["worst_steps"]), rounded(row["over_554"]))
            for row in found["rows"]
        ]  # fmt: skip
        columns = ("cell", "instances", "first run", "again", "others", "outcomes", "most steps", "over (5, 5, 4)")
        title = "Blocks of a study" + (f", on an {found['environment']['device']}" if name == "blocks_gpu" else "")
        parts.append(section(title, text, markdown(columns, lines), found, "blocks.py", load=True))
    return "\n\n".join(parts)


def gaps() -> str:
    """The flow's own gap for every kind of model."""
    found = results("own_gaps")
    rows = [
        (row["model"], ", ".join(map(str, row["size"])), row["instances"], power(row["gap"]), row["reached"],
         ended(row["outcomes"]), power(row["own_gap"]["median"]), seconds(row["seconds"]["median"]))
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("model", "size", "instances", "asked for", "reached", "outcomes", "own gap, median", "seconds, median")
    first = section("How far a flow certifies itself", "", markdown(columns, rows), found, "own_gaps.py --count 100")
    found = results("factors")
    kinds = [("(6,8,10)", found["(6,8,10)"])]
    kinds += [(f"d = m = {d}", row) for d, row in found["dimensions"].items()]
    rows = [
        (name, row["instances"], ended(row["outcomes"]), power(row["own_gap_median"]), power(row["own_gap_worst"]),
         seconds(row["seconds_median"]), seconds(row["seconds_worst"]))
        for name, row in kinds
    ]  # fmt: skip
    columns = ("size", "instances", "outcomes", "own gap, median", "worst", "seconds, median", "worst")
    second = section(None, "(K, Q), `find_limit`, compiled:", markdown(columns, rows), found, "factors.py")
    return f"{first}\n\n{second}"


def studies() -> str:
    """The engine of studies against what one would write instead."""
    found = results("studies")
    rows = [
        (row["parametrization"], sizes(row), row["way"], count(row["instances"]), rounded(row["instances_per_s"]),
         seconds(row["first_run_s"]), count(row["other_tokens"]), count(row["other_outcomes"]), ended(row["outcomes"]))
        for row in found["studies"]
    ]  # fmt: skip
    columns = (
        *("trained", "n, T, d", "way", "instances", "a second", "first run, seconds"),
        *("other tokens than the engine", "another outcome", "outcomes"),
    )
    text = (
        "The tokens that are selected: the study's queues of lanes (in double precision, and with scouts in single "
        "precision), compared with one integration mapped over a batch."
    )
    return section("Studies", text, markdown(columns, rows), found, "studies.py")


def own_models() -> str:
    """Two-layer ReLU networks."""
    found = results("own_model")
    rows = [
        (row["d"], row["seed"], ended(row["outcomes"]), row["residual <= 1e-6"],
         rounded(row["sliding kinks"]["median"]), rounded(row["exact steps"]["median"]),
         count(row["exact steps"]["max"]))
        for row in found["networks"]
    ]  # fmt: skip
    columns = ("d", "seed", "outcomes", "residual below 1e-6", "sliding kinks, median", "steps, median", "largest")
    text = "Two-layer ReLU networks of 16 units on 20 data on two sides of a plane; see [your own model](own-model.md)."
    return section("Models of your own", text, markdown(columns, rows), found, "own_model.py")


def batches() -> str:
    """Mixed lanes under `vmap`, beside single calls."""
    found = results("batches")
    rows = [
        (row["case"], row["lanes"], row["decided"], row["outcomes differ"], power(row["largest difference"]),
         milliseconds(row["batch_s"]), rounded(row["ratio_to_singles"]), rounded(row["ratio_to_slowest"]))
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("what", "lanes", "with an answer", "outcomes that differ", "largest difference", "batch, ms",
               "over all single calls", "over the slowest one, times lanes")  # fmt: skip
    text = (
        "Ordinary instances mixed with NaN, infinities, duplicates, ties, zeros, sizes of 1e150 and 1e-150, and one "
        "label only. *Difference*: of the numbers of a lane from those of a single call, relative to the largest of "
        "them."
    )
    return section("Batches", text, markdown(columns, rows), found, "batches.py", load=True)


def memory() -> str:
    """What stays of many calls."""
    found = results("memory")
    rows = [
        (count(row["calls"]), count(row["maps"]), rounded(row["resident_mb"]), count(row["programs"]),
         count(row["live_arrays"]))
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("calls", "memory maps", "resident, MB", "programs compiled", "live arrays")
    text = (
        f"`find_limit` for W in one process, over {found['shapes']} shapes, each once in every round. Linux gives a "
        "process 65,530 memory maps."
    )
    return section("What many calls keep", text, markdown(columns, rows), found, "memory.py", load=True)


def referee() -> str:
    """Claimed limits against NumPy, SciPy and CVXPY: right, undecided, not to be told, wrong."""
    found = results("referee")
    words = ("right", "undecided", "unverified", "wrong")
    models = list(dict.fromkeys(row["model"] for row in found["rows"]))
    lines = []
    for model in models:
        rows = [row for row in found["rows"] if row["model"] == model]
        for row in rows:
            lines.append((model, row["kind"], count(row["instances"]), *(str(row[word]) for word in words)))
        sums = {word: sum(row[word] for row in rows) for word in words}
        lines.append((f"**{model}**", "all", count(sum(row["instances"] for row in rows)), *map(count, sums.values())))
    total = {word: sum(row[word] for row in found["rows"]) for word in words}
    regular = [row for row in found["rows"] if row["regular"]]
    open_ones = sum(row["undecided"] for row in regular) / sum(row["instances"] for row in regular)
    shares = {f"{row['model']}, {row['kind']}": row["undecided"] / row["instances"] for row in regular}
    over = [f"{name} ({100 * share:.2g}%)" for name, share in shares.items() if share > 0.01]
    text = (
        f"{count(sum(total.values()))} instances, drawn and judged without the library: the program of the claimed "
        "tokens is solved again or bounded by its dual, Definition 2 is decided again, and a plain integration "
        f"follows the flow. **{total['wrong']} wrong**; {count(total['undecided'])} undecided (nothing is claimed), "
        f"{100 * open_ones:.2g}% on regular data; for {total['unverified']} the "
        "referee cannot decide (a start so far out that an explicit method does not move it, or a path that has not "
        "settled at its end). "
        "Kinds without a row were not run. The record has the `--scale` that sets the number of instances, and the "
        f"commit.{' Regular kinds with more than 1% undecided: ' if over else ''}"
        f"{', '.join(over)}{'.' if over else ''}"
    )
    columns = ("model", "instances are", "number", *words)
    return section("A referee", text, markdown(columns, lines), found, "referee.py", load=True)


def million() -> str:
    """Many limits in one run, where a device did them."""
    title = "A million limits"
    what = "limits of W and of (K, Q) with n = T = 5, d = 10, selected and certified, their programs solved"
    if not (RESULTS / "million.json").exists():
        return f"## {title}\n\n1,000,000 and 100,000 {what} (`benchmarks/million.py`): **not measured yet**."
    found = results("million")
    rows = [
        (row["device"], row["parametrization"], count(row["instances"]), seconds(row["first_block_s"]),
         seconds(row["seconds"]), count(row["a_second"]), ended(row["outcomes"]))
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("device", "trained", "instances", "first block, s", "all, s", "a second", "ended")
    text = f"{what[0].upper()}{what[1:]}. The first block compiles. The target for an accelerator is a minute each."
    return section(title, text, markdown(columns, rows), found, "million.py", load=True)


if __name__ == "__main__":
    print(page(), end="")
