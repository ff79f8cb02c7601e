"""The Kubernetes manifests against the fields that Kubeflow's training operator and Kubernetes know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

SCRIPT = Path(__file__).parents[2] / "docker" / "manifests.py"
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}


def only(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def some(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


QUANTITIES = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
VOLUME = {
    "oneOf": [
        only({"name": NAME, "persistentVolumeClaim": only({"claimName": NAME})}),
        only({"name": NAME, "emptyDir": only({"medium": {"const": "Memory"}, "sizeLimit": TEXT})}),
    ]
}
CONTAINER = {
    "image": TEXT,
    "command": some(TEXT),
    "env": some(only({"name": TEXT, "value": {"type": "string"}})),
    "resources": only({}, requests=QUANTITIES, limits=QUANTITIES),
    "volumeMounts": some(only({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}})),
}


def replica(container: str, count: dict[str, Any]) -> dict[str, Any]:
    user = {"type": "integer", "minimum": 1}
    spec = {
        "securityContext": only({"runAsNonRoot": {"const": True}, "runAsUser": user, "fsGroup": user}),
        "containers": {"type": "array", "items": only({"name": {"const": container}, **CONTAINER}), "minItems": 1, "maxItems": 1},
        "volumes": some(VOLUME),
    }  # fmt: skip
    policy = {"enum": ["Never", "Always", "OnFailure", "ExitCode"]}
    template = only({"metadata": only({"labels": LABELS}), "spec": only(spec)})
    return only({"replicas": count, "restartPolicy": policy, "template": template})


def job(kind: str, **spec: Any) -> dict[str, Any]:
    policy = only(
        {},
        cleanPodPolicy={"enum": ["None", "Running", "All"]},
        backoffLimit={"type": "integer", "minimum": 0},
        activeDeadlineSeconds=COUNT,
        ttlSecondsAfterFinished=COUNT,
    )
    return only(
        {
            "apiVersion": {"const": "kubeflow.org/v1"},
            "kind": {"const": kind},
            "metadata": only({"name": NAME}),
            "spec": only({"runPolicy": policy, **spec}),
        }
    )


SCHEMAS = {
    "PyTorchJob": job(
        "PyTorchJob",
        nprocPerNode={"type": "string", "pattern": "^([1-9][0-9]*|auto|cpu|gpu)$"},
        pytorchReplicaSpecs=only(
            {"Master": replica("pytorch", {"const": 1})}, Worker=replica("pytorch", COUNT)
        ),
    ),
    "MPIJob": job(
        "MPIJob",
        slotsPerWorker=COUNT,
        mpiReplicaSpecs=only({"Launcher": replica("mpi", {"const": 1}), "Worker": replica("mpi", COUNT)}),
    ),
    "Service": only(
        {
            "apiVersion": {"const": "v1"},
            "kind": {"const": "Service"},
            "metadata": only({"name": NAME}),
            "spec": only(
                {
                    "clusterIP": {"const": "None"},
                    "publishNotReadyAddresses": {"type": "boolean"},
                    "selector": LABELS,
                    "ports": some(only({"name": NAME, "port": COUNT})),
                }
            ),
        }
    ),
}


def render(*options: str) -> list[dict[str, Any]]:
    answer = subprocess.run(
        [sys.executable, SCRIPT, "--image=registry.example.org/idist:1", *options],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return list(yaml.safe_load_all(answer.stdout))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--backend=nccl", "--np=8", "--nnodes=4", "--data-claim=cifar10"),
        ("--nnodes=1", "--", "--num_epochs=1"),
    ],
)
def test_manifests_have_the_fields_that_kubeflow_knows(options: tuple[str, ...]) -> None:
    documents = render(*options)
    assert [document["kind"] for document in documents] == ["PyTorchJob", "Service", "MPIJob"]
    for document in documents:
        jsonschema.Draft202012Validator(SCHEMAS[document["kind"]]).validate(document)
    assert len({document["metadata"]["name"] for document in documents}) == 3


def test_the_world_is_as_large_as_asked_for() -> None:
    pytorch, service, mpi = render("--backend=nccl", "--np=8", "--nnodes=4", "--", "--num_epochs=3")
    specs = pytorch["spec"]["pytorchReplicaSpecs"]
    assert (pytorch["spec"]["nprocPerNode"], specs["Worker"]["replicas"]) == ("8", 3)
    container = specs["Master"]["template"]["spec"]["containers"][0]
    assert container["command"] == [
        "torchrun",
        "-m",
        "reference.cifar10",
        "run",
        "--backend=nccl",
        "--num_epochs=3",
    ]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    workers = mpi["spec"]["mpiReplicaSpecs"]["Worker"]
    launcher = mpi["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert (mpi["spec"]["slotsPerWorker"], workers["replicas"]) == (8, 4)
    assert launcher["command"][:5] == ["mpirun", "--bind-to", "none", "-np", "32"]
    assert f"MASTER_ADDR={service['metadata']['name']}" in launcher["command"]
    assert service["spec"]["selector"]["training.kubeflow.org/job-name"] == mpi["metadata"]["name"]
    assert "limits" not in launcher["resources"]


@pytest.mark.parametrize(
    "options", [("--np=0",), ("--name=Bad_Name",), ("--backend=horovod",), ("--unknown=1",)]
)
def test_wrong_options_are_refused(options: tuple[str, ...]) -> None:
    answer = subprocess.run(
        [sys.executable, SCRIPT, "--image=x", *options], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (2, "")
