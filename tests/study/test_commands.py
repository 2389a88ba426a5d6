"""`jaxflow study`: run, resume, status, report."""

import json
import signal

import pytest
from typer.testing import CliRunner

from jaxflow.cli.study import app
from jaxflow.study import open_results, read_spec, study_of_store
from tests.study.cheap import SPEC, payload, small_study

runner = CliRunner()


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


def invoke(*arguments) -> tuple[int, str]:
    found = runner.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert "Traceback" not in found.output, found.output
    return found.exit_code, found.output


def test_run_status_report(spec, tmp_path, host):
    code, output = invoke("run", spec, "--out", "r.zarr")
    assert code == 0, output
    assert "40/40" in output and "globally_optimal" in output and "complete" in output
    assert payload(tmp_path / "r.zarr") == host
    assert study_of_store(tmp_path / "r.zarr").plan == read_spec(spec).plan
    code, output = invoke("status", "r.zarr", "--verify")
    assert code == 0 and "40 of 40 instances, 12 of 12 blocks" in output
    told = json.loads(runner.invoke(app, ["status", "r.zarr", "--json"]).stdout)
    assert told["complete"] and told["instances"] == 40 == sum(told["outcomes"].values())
    again = json.loads(runner.invoke(app, ["resume", "r.zarr", "--quiet", "--json"]).stdout)
    assert again["status"] == told
    assert sum(int(row["instances"]) for row in again["outcomes"]) == 40
    code, output = invoke("report", "r.zarr")
    assert code == 0 and "wrote r.html" in output and (tmp_path / "r.html").stat().st_size > 10_000
    code, output = invoke("report", "r.zarr")
    assert code == 2 and "already holds r.html" in output


def test_interrupted_it_exits_130_and_is_resumed_from_the_store_alone(spec, tmp_path):
    spec.write_text(SPEC + f'[settings]\nmisbehave = "interrupt"\nflag = "{tmp_path / "once"}"\n')
    code, output = invoke("run", spec, "--out", "r.zarr", "--quiet")
    assert code == 130
    assert "stopped; 7 of 12 blocks are complete in r.zarr" in output and "jaxflow study resume" in output
    code, output = invoke("status", "r.zarr")
    assert code == 3 and "not complete" in output
    code, output = invoke("resume", "r.zarr", "--executor", "devices", "--quiet")
    assert code == 0 and "12 of 12 blocks" in output
    with open_results("r.zarr") as results:
        assert (results.outcome.values > 0).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("trials = 10", "trails = 10"), "spec: unknown name 'trails'; did you mean 'trials'?"),
        (("trials = 10", "trials = 2.5"), "trials: expected an integer, got 2.5"),
        (("trials = 10", "trials = "), "is no TOML"),
        (("tests.study.cheap:HostExperiment", "TokenSelecton"), "experiment: unknown name 'TokenSelecton'; did you"),
        (("tests.study.cheap:HostExperiment", "tests.study.cheap:Nothing"), "experiment: cannot import"),
        (("tests.study.cheap:HostExperiment", "tests.study.cheap:os"), "is no experiment"),
        (('experiment = "tests.study.cheap:HostExperiment"', ""), "spec: it names no experiment"),
        (("[data_factors]", "[settings]\npaws = 1\n[data_factors]"), "settings: "),
    ],
)
def test_bad_specs(change, message, spec, tmp_path):
    spec.write_text(SPEC.replace(*change))
    code, output = invoke("run", spec, "--out", "r.zarr", "--quiet")
    assert code == 2 and message in output and len(output.strip().splitlines()) == 1, output
    assert not (tmp_path / "r.zarr").exists()


def test_other_refusals(spec, tmp_path):
    code, output = invoke("run", "nothing.toml", "--out", "r.zarr")
    assert code == 2 and "spec: there is no file nothing.toml" in output
    for command in ("resume", "report", "status"):
        code, output = invoke(command, "nothing.zarr")
        assert code == 2 and "there is no store at nothing.zarr" in output
    assert invoke("run", tmp_path, "--out", "r.zarr")[0] == 2
    code, output = invoke("run", spec, "--out", "r.zarr", "--executor", "dsak")
    assert code == 2 and "did you mean 'dask'?" in output
    invoke("run", spec, "--out", "r.zarr", "--quiet")
    spec.write_text(SPEC.replace("trials = 10", "trials = 9"))
    code, output = invoke("run", spec, "--out", "r.zarr", "--quiet")
    assert code == 2 and "belongs to another study: trials 10 there, 9 here" in output
    assert invoke("run", spec, "--out", "r.zarr", "--quiet", "--overwrite")[0] == 0


def test_a_store_whose_experiment_cannot_be_imported(tmp_path):
    def inner(key, d=2):
        return {"value": d}

    small_study(inner, data_factors={}, method_factors={}).run(tmp_path / "r.zarr", progress=False)
    code, output = invoke("resume", tmp_path / "r.zarr")
    assert code == 2 and "cannot be imported; run the script again that began it" in output
