"""One accepted and one refused job for each rule and bound; held against the API server and against `validation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A job that is accepted, one that is refused, the field that is blamed, and what is said of it.

    `says` is what both say where it is a rule of ours, else what the API server says (`own` is False then).
    """

    name: str
    good: Json
    bad: Json
    where: str
    says: str
    own: bool = True


def manifest(name: str = "job", **spec: Any) -> Json:
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"template": trainer(), **spec},
    }


def pod(**more: Any) -> Json:
    return {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}], **more}}


def trainer(**more: Any) -> Json:
    return pod(containers=[{"name": "trainer", "image": "trainer:1", **more}])


def template(template: Json) -> Json:
    return manifest(template=template)


def _env(*names: str) -> Json:
    return template(trainer(env=[{"name": name, "value": "1"} for name in names]))


RESERVED = (
    "the container 'trainer' sets environment variables that elastrain and torchrun set for every round: {}; "
    "remove them from its env"
)
CONTAINER = "spec.template.spec.containers"

RULES = (
    Case(
        "minNodes up to nodes",
        manifest(nodes=4, minNodes=4),
        manifest(nodes=4, minNodes=6),
        "spec.minNodes",
        "spec.minNodes: 6 is more than spec.nodes: 4; lower minNodes or raise nodes",
    ),
    Case(
        "minNodes up to the default of nodes",
        manifest(minNodes=1),
        manifest(minNodes=2),
        "spec.minNodes",
        "spec.minNodes: 2 is more than spec.nodes: 1; lower minNodes or raise nodes",
    ),
    Case(
        "nodes up to maxNodes",
        manifest(nodes=4, maxNodes=4),
        manifest(nodes=5, maxNodes=4),
        "spec.nodes",
        "spec.nodes: 5 is more than spec.maxNodes: 4; lower nodes or raise maxNodes",
    ),
    Case(
        "nodes by multiple",
        manifest(nodes=4, nodeMultiple=2),
        manifest(nodes=3, nodeMultiple=2),
        "spec.nodes",
        "spec.nodes: 3 is not a multiple of spec.nodeMultiple: 2; change nodes or nodeMultiple",
    ),
    Case(
        "minNodes by multiple",
        manifest(nodes=4, minNodes=2, nodeMultiple=2),
        manifest(nodes=4, minNodes=1, nodeMultiple=2),
        "spec.minNodes",
        "spec.minNodes: 1 is not a multiple of spec.nodeMultiple: 2; change minNodes or nodeMultiple",
    ),
    Case(
        "maxNodes by multiple",
        manifest(nodes=4, maxNodes=6, nodeMultiple=2),
        manifest(nodes=4, maxNodes=7, nodeMultiple=2),
        "spec.maxNodes",
        "spec.maxNodes: 7 is not a multiple of spec.nodeMultiple: 2; change maxNodes or nodeMultiple",
    ),
    Case(
        "checkpoint.path absolute",
        manifest(checkpoint={"path": "/data"}),
        manifest(checkpoint={"path": "data"}),
        "spec.checkpoint.path",
        "spec.checkpoint.path must be absolute: begin it with '/' at the mount of shared storage",
    ),
    Case(
        "backoffSeconds up to maxBackoffSeconds",
        manifest(failurePolicy={"backoffSeconds": 5, "maxBackoffSeconds": 5}),
        manifest(failurePolicy={"backoffSeconds": 301}),
        "spec.failurePolicy.backoffSeconds",
        "spec.failurePolicy.backoffSeconds: 301 is more than maxBackoffSeconds: 300; lower the one or raise the other",
    ),
    Case(
        "exit codes in one list",
        manifest(failurePolicy={"fatalExitCodes": [1], "freeExitCodes": [2]}),
        manifest(failurePolicy={"fatalExitCodes": [1, 3, 4], "freeExitCodes": [4, 3]}),
        "spec.failurePolicy.fatalExitCodes",
        "spec.failurePolicy.fatalExitCodes and freeExitCodes have codes in common: [3, 4]; take them out of one",
    ),
    Case(
        "a container trainer",
        template(pod(containers=[{"name": "side"}, {"name": "trainer", "image": "x"}])),
        template(pod(containers=[{"name": "main", "image": "x"}])),
        CONTAINER,
        "spec.template.spec.containers has no container named 'trainer'; name the one that trains 'trainer'",
    ),
    Case(
        "with an image",
        template(trainer()),
        template(pod(containers=[{"name": "trainer"}])),
        f"{CONTAINER}[0]",
        "the container 'trainer' in spec.template.spec.containers has no image; give it one",
    ),
    Case(
        "with an image that has a name",
        template(trainer(image="x")),
        template(trainer(image="")),
        f"{CONTAINER}[0].image",
        "the container 'trainer' in spec.template.spec.containers has no image; give it one",
    ),
    Case(
        "restartPolicy Never",
        template(pod(restartPolicy="Never")),
        template(pod(restartPolicy="OnFailure")),
        "spec.template.spec.restartPolicy",
        "spec.template.spec.restartPolicy must be Never or left out: the operator restarts training itself",
    ),
    *(
        Case(f"{bad} reserved", _env(good), _env("HOME", bad), f"{CONTAINER}[0].env", RESERVED.format(f'["{bad}"]'))
        for good, bad in (
            ("WORLD", "WORLD_SIZE"),
            ("rank", "RANK"),
            ("LOCAL_RANKS", "LOCAL_RANK"),
            ("A_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE"),
            ("GROUP", "GROUP_RANK"),
            ("ROLE", "ROLE_RANK"),
            ("MASTER", "MASTER_ADDR"),
            ("MASTER_PORTS", "MASTER_PORT"),
            ("MY_ELASTRAIN_X", "ELASTRAIN_X"),
            ("TORCH_LOGS", "TORCHELASTIC_RUN_ID"),
            ("KUBEFLOW", "KUBEFLOW_TRAINER_SERVER_URL"),
            ("CARPET_SIZE", "PET_STANDALONE"),
        )
    ),
    Case(
        "all reserved ones are named",
        template(pod(containers=[{"name": "trainer", "image": "x"}, {"name": "b", "env": [{"name": "RANK"}]}])),
        _env("RANK", "A", "ELASTRAIN_B"),
        f"{CONTAINER}[0].env",
        RESERVED.format('["RANK", "ELASTRAIN_B"]'),
    ),
    Case(
        "procsPerNode up to",
        manifest(procsPerNode=1024),
        manifest(procsPerNode=1025),
        "spec.procsPerNode",
        "spec.procsPerNode must be auto or from 1 to 1024",
    ),
    Case(
        "procsPerNode from",
        manifest(procsPerNode=1),
        manifest(procsPerNode=0),
        "spec.procsPerNode",
        "spec.procsPerNode must be auto or from 1 to 1024",
    ),
    Case(
        "procsPerNode by word",
        manifest(procsPerNode="auto"),
        manifest(procsPerNode="8"),
        "spec.procsPerNode",
        "spec.procsPerNode must be auto or from 1 to 1024",
    ),
    Case(
        "hangSeconds",
        manifest(failurePolicy={"hangSeconds": 60}),
        manifest(failurePolicy={"hangSeconds": "soon"}),
        "spec.failurePolicy.hangSeconds",
        "spec.failurePolicy.hangSeconds must be auto or from 1 to 315360000",
    ),
    Case(
        "name's length",
        manifest("x" * 52),
        manifest("x" * 60),
        "metadata.name",
        "metadata.name has more than 52 characters: 60; the names of its pods, <name>-<index>-<attempt>, "
        "would exceed 63; choose a shorter name",
    ),
    *(
        Case(
            f"name {bad}",
            manifest(good),
            manifest(bad),
            "metadata.name",
            "metadata.name names a Service too: it must begin with a letter and hold only lower case letters, "
            "digits and '-'; choose another name",
        )
        for good, bad in (("a-1", "1a"), ("a-b", "a.b"))
    ),
)

SCHEMA = (
    Case(
        "unknown field",
        manifest(nodes=2),
        manifest(nodez=2),
        "spec.nodez",
        'strict decoding error: unknown field "spec.nodez"',
        own=False,
    ),
    Case(
        "unknown field in depth",
        manifest(scaling={"mode": "Restart"}),
        manifest(scaling={"Mode": "Restart"}),
        "spec.scaling.Mode",
        'unknown field "spec.scaling.Mode"',
        own=False,
    ),
    Case(
        "template",
        manifest(),
        {**manifest(), "spec": {"nodes": 2}},
        "spec.template",
        "spec.template: Required value",
        own=False,
    ),
    Case(
        "template.spec",
        template({"metadata": {"labels": {"a": "b"}}, **trainer()}),
        template({"metadata": {}}),
        "spec.template.spec",
        "spec.template.spec: Required value",
        own=False,
    ),
    Case(
        "containers",
        template(pod()),
        template(pod(containers=[])),
        CONTAINER,
        "should have at least 1 items",
        own=False,
    ),
    Case(
        "a list of containers",
        template(pod()),
        template(pod(containers="trainer")),
        CONTAINER,
        "must be of type array",
        own=False,
    ),
    Case(
        "containers by different names",
        template(pod(containers=[{"name": "trainer", "image": "x"}, {"name": "b"}])),
        template(pod(containers=[{"name": "trainer", "image": "x"}] * 2)),
        f"{CONTAINER}[1]",
        'Duplicate value: {"name":"trainer"}',
        own=False,
    ),
    Case(
        "volumes",
        template(pod(volumes=[{"name": "a", "emptyDir": {}}])),
        template(pod(volumes="data")),
        "spec.template.spec.volumes",
        "must be of type array",
        own=False,
    ),
    Case(
        "resources",
        template(trainer(resources={"limits": {"cpu": 1}, "claims": [{"name": "gpu"}]})),
        template(trainer(resources={"limits": {"cpu": [1]}})),
        f"{CONTAINER}[0].resources.limits.cpu",
        "must be of type integer,string",
        own=False,
    ),
    Case(
        "a name for each variable",
        _env("A"),
        template(trainer(env=[{"value": "1"}])),
        f"{CONTAINER}[0].env[0].name",
        "Required value",
        own=False,
    ),
    Case(
        "labels' length",
        template({"metadata": {"labels": {"a": "x" * 63}}, **trainer()}),
        template({"metadata": {"labels": {"a": "x" * 64}}, **trainer()}),
        "spec.template.metadata.labels.a",
        "may not be more than 63",
        own=False,
    ),
    Case(
        "checkpoint without path",
        manifest(checkpoint={"path": "/a"}),
        manifest(checkpoint={"everySteps": 10}),
        "spec.checkpoint.path",
        "Required value",
        own=False,
    ),
    Case(
        "exit codes are bytes",
        manifest(failurePolicy={"fatalExitCodes": [1, 255]}),
        manifest(failurePolicy={"fatalExitCodes": [256]}),
        "spec.failurePolicy.fatalExitCodes[0]",
        "should be less than or equal to 255",
        own=False,
    ),
    Case(
        "as many exit codes",
        manifest(failurePolicy={"freeExitCodes": [*range(1, 65)]}),
        manifest(failurePolicy={"freeExitCodes": [*range(1, 66)]}),
        "spec.failurePolicy.freeExitCodes",
        "must have at most 64 items",
        own=False,
    ),
    Case(
        "suspend",
        manifest(suspend=True),
        manifest(suspend="yes"),
        "spec.suspend",
        "must be of type boolean",
        own=False,
    ),
    Case(
        "nodes as a number",
        manifest(nodes=2),
        manifest(nodes="2"),
        "spec.nodes",
        "must be of type integer",
        own=False,
    ),
    Case(
        "managedBy",
        manifest(managedBy="x" * 63),
        manifest(managedBy="x" * 64),
        "spec.managedBy",
        "may not be more than 63",
        own=False,
    ),
    Case(
        "cleanPodPolicy",
        manifest(cleanPodPolicy="None"),
        manifest(cleanPodPolicy="Some"),
        "spec.cleanPodPolicy",
        'supported values: "Running", "All", "None"',
        own=False,
    ),
    Case(
        "scaling.mode",
        manifest(scaling={"mode": "InPlace"}),
        manifest(scaling={"mode": "inplace"}),
        "spec.scaling.mode",
        'supported values: "Auto", "InPlace", "Restart"',
        own=False,
    ),
    Case(
        "scheduling.gang",
        manifest(scheduling={"gang": "Volcano"}),
        manifest(scheduling={"gang": "Slurm"}),
        "spec.scheduling.gang",
        'supported values: "Auto", "None", "Native", "Coscheduling", "Volcano", "KAI"',
        own=False,
    ),
)

BOUNDS: Mapping[str, tuple[int, int]] = {
    "nodes": (1, 5000),
    "minNodes": (1, 5000),
    "maxNodes": (1, 5000),
    "nodeMultiple": (1, 5000),
    "globalBatchSize": (1, 2**31 - 1),
    "checkpoint.everySeconds": (1, 315_360_000),
    "checkpoint.everySteps": (1, 2**31 - 1),
    "checkpoint.keep": (1, 1000),
    "scaling.settleSeconds": (0, 315_360_000),
    "scaling.leaveSeconds": (1, 315_360_000),
    "failurePolicy.maxFailures": (0, 100_000),
    "failurePolicy.windowSeconds": (1, 315_360_000),
    "failurePolicy.backoffSeconds": (0, 315_360_000),
    "failurePolicy.maxBackoffSeconds": (0, 315_360_000),
    "failurePolicy.nodeLossSeconds": (1, 315_360_000),
    "failurePolicy.nodeStrikes": (1, 1000),
    "spares": (0, 5000),
    "activeDeadlineSeconds": (1, 315_360_000),
    "startTimeoutSeconds": (1, 315_360_000),
    "ttlSecondsAfterFinished": (0, 315_360_000),
}
"""The least and the greatest value of every number in spec; ten years are 315,360,000 seconds."""

_BESIDE: Mapping[str, Json] = {
    "minNodes": {"nodes": 5000},
    "nodeMultiple": {"nodes": 5000},
    "checkpoint.everySeconds": {"checkpoint": {"path": "/a"}},
    "checkpoint.everySteps": {"checkpoint": {"path": "/a"}},
    "checkpoint.keep": {"checkpoint": {"path": "/a"}},
    "failurePolicy.backoffSeconds": {"failurePolicy": {"maxBackoffSeconds": 315_360_000}},
    "failurePolicy.maxBackoffSeconds": {"failurePolicy": {"backoffSeconds": 0}},
}
"""What other rules ask for, so that the bound alone decides."""


def _with(field: str, value: int) -> Json:
    spec = {name: dict(v) if isinstance(v, dict) else v for name, v in _BESIDE.get(field, {}).items()}
    outer, _, inner = field.partition(".")
    if inner:
        spec.setdefault(outer, {})[inner] = value
    else:
        spec[outer] = value
    return manifest(**spec)


def bounds() -> Iterator[Case]:
    for field, (least, most) in BOUNDS.items():
        for good, bad, words in ((least, least - 1, "greater"), (most, most + 1, "less")):
            yield Case(
                f"{field} {bad}",
                _with(field, good),
                _with(field, bad),
                f"spec.{field}",
                f"should be {words} than or equal to {good}",
                own=True,
            )


CASES = (*RULES, *SCHEMA, *bounds())
