"""What the agents of a job find in their environment (docs/protocol.md), wherever they run."""

from __future__ import annotations

from elastrain.api.trainjob import TrainJob


def environment(job: TrainJob, index: int, *, url: str, credentials: str) -> dict[str, str]:
    """Return the variables that do not depend on where the pod runs.

    Args:
        job: the job.
        index: the node index.
        url: of the coordinator, without a slash at its end.
        credentials: the folder with `token` and `ca.crt`, as the agent sees it.

    """
    meta, spec = job.metadata, job.spec
    variables: dict[str, object] = {
        "ELASTRAIN_COORDINATOR_URL": url,
        "ELASTRAIN_CREDENTIALS": credentials,
        "ELASTRAIN_NAMESPACE": meta.namespace,
        "ELASTRAIN_JOB": meta.name,
        "ELASTRAIN_JOB_UID": meta.uid,
        "ELASTRAIN_NODE_INDEX": index,
        "ELASTRAIN_LEAVE_SECONDS": spec.scaling.leave_seconds,
        "ELASTRAIN_GLOBAL_BATCH_SIZE": spec.global_batch_size,
        "ELASTRAIN_CHECKPOINT_PATH": spec.checkpoint and spec.checkpoint.path,
        "ELASTRAIN_CHECKPOINT_EVERY_SECONDS": spec.checkpoint and spec.checkpoint.every_seconds,
        "ELASTRAIN_CHECKPOINT_EVERY_STEPS": spec.checkpoint and spec.checkpoint.every_steps,
        "ELASTRAIN_CHECKPOINT_KEEP": spec.checkpoint and spec.checkpoint.keep,
        "KUBEFLOW_TRAINER_SERVER_URL": f"{url}/apis/trainer.kubeflow.org/v1alpha1"
        f"/namespaces/{meta.namespace}/trainjobs/{meta.name}/status",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": f"{credentials}/ca.crt",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{credentials}/token",
    }
    return {name: str(value) for name, value in variables.items() if value is not None}
