"""Kubernetes manifests of a training, for Kubeflow's training operator, on standard output; what `make manifests` calls.

    python docker/manifests.py --backend=nccl --nnodes=2 --np=8 --image=REGISTRY/idist-workbench:nccl-horovod -- --num_epochs=5

A PyTorchJob, which starts torchrun in every pod, and an MPIJob, which starts mpirun in one pod and reaches the others with
kubectl: no image needs an SSH server. `--kind` prints one of them. Both are of API version kubeflow.org/v1.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

import yaml

PORT = 29500  # where rank 0 of an MPIJob listens
SHM_PER_PROCESS = 512  # MiB, as launchers/container.sh has it
RUNS, DATA, SHM = "/workspace/runs", "/workspace/data", "/dev/shm"


def pod(
    options: argparse.Namespace, container: str, command: list[str], *, trains: bool = True
) -> dict[str, Any]:
    """The template of a pod whose container, of this name, starts the command.

    Args:
        options: of the command line.
        container: the name that the operator looks for.
        command: replaces the entry point of the image, so it is found in the PATH.
        trains: whether the processes of a node run here, with their GPUs.
    """
    resources: dict[str, Any] = {"requests": {"cpu": str(options.cpus * options.np if trains else 1)}}
    if trains and options.backend == "nccl":
        resources["limits"] = {"nvidia.com/gpu": options.np}
    claims = {RUNS: options.runs_claim, DATA: options.data_claim}
    volumes: list[dict[str, Any]] = [
        {"name": path.rsplit("/", 1)[1], "persistentVolumeClaim": {"claimName": claim}}
        for path, claim in claims.items()
        if claim
    ]
    volumes.append(
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_PER_PROCESS * options.np}Mi"}}
    )
    places = {"runs": RUNS, "data": DATA, "shm": SHM}
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": "idist-workbench"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": options.user, "fsGroup": options.user},
            "containers": [
                {
                    "name": container,
                    "image": options.image,
                    "command": command,
                    "env": [
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "IMAGE", "value": options.image},
                        {"name": "OMP_NUM_THREADS", "value": str(options.cpus)},
                    ],
                    "resources": resources,
                    "volumeMounts": [{"name": v["name"], "mountPath": places[v["name"]]} for v in volumes],
                }
            ],
            "volumes": volumes,
        },
    }


def job(options: argparse.Namespace, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A job of Kubeflow with the part that all kinds share."""
    policy = {"cleanPodPolicy": "Running", "backoffLimit": options.restarts}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": options.name},
        "spec": {"runPolicy": policy, **spec},
    }


def replicas(count: int, template: dict[str, Any]) -> dict[str, Any]:
    """So many pods of this template. A pod that failed does not start again by itself: its world has failed with it."""
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def pytorch_job(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The operator sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and so on, which torchrun reads."""
    command = [
        "torchrun",
        "-m",
        "reference.cifar10",
        "run",
        f"--backend={options.backend}",
        *options.arguments,
    ]
    specs = {"Master": replicas(1, pod(options, "pytorch", command))}
    if options.nnodes > 1:
        specs["Worker"] = replicas(options.nnodes - 1, pod(options, "pytorch", command))
    return [job(options, "PyTorchJob", {"nprocPerNode": str(options.np), "pytorchReplicaSpecs": specs})]


def mpi_job(options: argparse.Namespace) -> list[dict[str, Any]]:
    """mpirun only starts the processes; gloo and nccl meet at rank 0, which a service gives a name."""
    meeting = f"{options.name}-rank0"
    passed = [f"MASTER_ADDR={meeting}", f"MASTER_PORT={PORT}", "OMP_NUM_THREADS", "PATH", "PYTHONPATH"]
    command = ["mpirun", "--bind-to", "none", "-np", str(options.np * options.nnodes)]
    for variable in passed:
        command += ["-x", variable]
    command += [
        "python",
        "-m",
        "reference.cifar10",
        "run",
        f"--backend={options.backend}",
        *options.arguments,
    ]
    specs = {
        "Launcher": replicas(1, pod(options, "mpi", command, trains=False)),
        "Worker": replicas(options.nnodes, pod(options, "mpi", ["sleep", "infinity"])),
    }
    labels = {"job-name": options.name, "replica-type": "worker", "replica-index": "0"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": meeting},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {f"training.kubeflow.org/{name}": value for name, value in labels.items()},
            "ports": [{"name": "rank0", "port": PORT}],
        },
    }
    return [service, job(options, "MPIJob", {"slotsPerWorker": options.np, "mpiReplicaSpecs": specs})]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; SystemExit 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="manifests", description="Kubernetes manifests of a training.", allow_abbrev=False,
        usage="manifests.py --image=IMAGE [OPTION...] [-- TRAINER OPTION...]",
    )  # fmt: skip
    parser.add_argument("--kind", choices=("PyTorchJob", "MPIJob", "both"), default="both")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--np", type=_count, default=2, help="processes, and for nccl GPUs, of a pod (2)")
    parser.add_argument("--nnodes", type=_count, default=2, help="pods that train (2)")
    parser.add_argument("--cpus", type=_count, default=2, help="CPUs and threads of a process (2)")
    parser.add_argument("--image", required=True, help="name that the cluster can pull")
    parser.add_argument("--name", type=_name, default="idist-cifar10")
    parser.add_argument(
        "--runs-claim", type=_name, default="runs", help="PersistentVolumeClaim that all pods write (runs)"
    )
    parser.add_argument("--data-claim", type=_name, help="PersistentVolumeClaim with the data (none: digits)")
    parser.add_argument("--user", type=_count, default=1000, help="user and group id (1000)")
    parser.add_argument(
        "--restarts", type=int, default=0, help="how often the operator starts a pod again (0)"
    )
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _name(text: str) -> str:
    # 50: Kubernetes allows 63 characters, and the operator appends the role and the index of a pod
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a Kubernetes name of at most 50 small letters, digits and -"
        )
    return text


def main() -> None:
    """Print the manifests."""
    options = parse(sys.argv[1:])
    kinds = {"PyTorchJob": pytorch_job, "MPIJob": mpi_job}
    chosen = kinds if options.kind == "both" else {options.kind: kinds[options.kind]}
    if options.kind == "both":
        names = {kind: f"{options.name}-{kind.removesuffix('Job').lower()}" for kind in kinds}
    else:
        names = {options.kind: options.name}
    documents = []
    for kind, make in chosen.items():
        documents += make(argparse.Namespace(**{**vars(options), "name": names[kind]}))
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
