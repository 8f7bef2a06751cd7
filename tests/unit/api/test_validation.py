"""Validation without an API server: the same table that the API server is held against."""

from typing import Any

import pytest
import yaml
from tests.unit.api.cases import CASES, Case, manifest, template, trainer
from typer.testing import CliRunner

from elastrain.api.validation import problems
from elastrain.cli import app


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accepted_and_refused(case: Case) -> None:
    assert problems(case.good) == ()
    (said,) = problems(case.bad)
    assert (case.says if case.own else case.where) in said


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "is not an object"),
        ([], "is not an object"),
        ({"kind": "TrainJob", "apiVersion": "trainer.kubeflow.org/v1alpha1"}, "apiVersion: elastrain.dev/v1alpha1"),
        ({**manifest(), "metadata": None}, "metadata.name: Required value"),
        ({**manifest(), "spec": None}, "spec: Required value"),
        ({**manifest(), "spec": []}, "spec: must be of type object"),
        ({"apiVersion": "elastrain.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "a"}}, "spec: Required"),
    ],
)
def test_what_is_no_trainjob(document: Any, says: str) -> None:
    (said,) = problems(document)
    assert says in said


def test_all_problems_are_told_at_once() -> None:
    assert len(problems(manifest(nodes=0, spares=-1, nodez=1))) == 3
    assert len(problems(manifest("1" * 60, minNodes=2, checkpoint={"path": "ab"}))) == 4


def test_nulls_are_absent() -> None:
    job = template(trainer(env=None, args=None, resources=None))
    job["spec"].update(minNodes=None, checkpoint=None, scaling=None)
    assert problems(job) == ()


def test_the_command_reports_each_job_and_passes_others_over(tmp_path: Any) -> None:
    file = tmp_path / "jobs.yaml"
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    file.write_text(yaml.safe_dump_all([claim, manifest("a"), None, manifest("b", nodes=0)]))
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert result.exit_code == 1
    assert f"{file}: trainjob/a is valid\n" in result.stdout
    assert result.stderr == f"{file}: trainjob/b: spec.nodes: 0 should be greater than or equal to 1\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (yaml.safe_dump(manifest("a")), 0, "trainjob/a is valid"),
        ("a: [", 1, "not YAML"),
        ("", 1, "no TrainJob in it"),
        ("kind: Pod", 1, "no TrainJob in it"),
        ("just words", 1, "is not an object"),
        ("kind: TrainJob\nmetadata: []", 1, "write apiVersion: elastrain.dev/v1alpha1"),
    ],
)
def test_the_command_reads_the_standard_input(text: str, code: int, says: str) -> None:
    result = CliRunner().invoke(app, ["validate", "-"], input=text)
    assert result.exit_code == code
    assert says in result.output
