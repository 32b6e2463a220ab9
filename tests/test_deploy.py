"""deploy/ fits itself, the package and the documentation.

Against the operator's own schema, where a checkout of it is at hand: KUBERAY_CRDS=helm-chart/kuberay-operator/crds
"""

import configparser
import os
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from documented import REPOSITORY, complaint
from packaging.requirements import Requirement

DEPLOY = REPOSITORY / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(set(KUBERNETES.glob("*.yaml")) - {KUBERNETES / "kustomization.yaml"})
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Those that are made by a person or by the operator, as the files' comments and docs/operations.md say.
SECRETS = {"indexmem-credentials", "indexmem-postgres", "indexmem"}


def documents() -> list[dict]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def of_kind(kind: str) -> dict:
    (found,) = [each for each in documents() if each["kind"] == kind]
    return found


def values(node, key: str) -> list:
    """All values of `key`, however deep."""
    if isinstance(node, list):
        return [found for item in node for found in values(item, key)]
    if isinstance(node, dict):
        here = [node[key]] if key in node else []
        return here + [found for item in node.values() for found in values(item, key)]
    return []


def pods() -> list[dict]:
    return [node["spec"] for node in values(documents(), "template") if "containers" in node.get("spec", {})]


def test_the_kustomization_names_every_file_but_the_job():
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS if path.name != "job.yaml"]
    assert [image["name"] for image in kustomization["images"]] == ["indexmem"]
    assert kustomization["namespace"] == of_kind("Namespace")["metadata"]["name"]


def test_what_is_referred_to_is_there():
    named = {(each["kind"], each["metadata"].get("name")) for each in documents()}
    claims = {each["claimName"] for each in values(documents(), "persistentVolumeClaim")}
    assert {("PersistentVolumeClaim", claim) for claim in claims} <= named
    assert {("ConfigMap", each["name"]) for each in values(documents(), "configMapRef")} <= named
    secrets = [*values(documents(), "secretRef"), *values(documents(), "secretKeyRef")]
    assert {each["name"] for each in secrets} == SECRETS
    job = of_kind("RayJob")["spec"]
    assert job["clusterSelector"] == {"ray.io/cluster": of_kind("RayCluster")["metadata"]["name"]}
    assert "backoffLimit" not in job  # refused by the operator for jobs on a cluster that it did not make
    services = {each["metadata"]["name"] for each in documents() if each["kind"] == "Service"}
    settings = of_kind("ConfigMap")["data"]
    assert settings["MLFLOW_TRACKING_URI"] == "http://indexmem-mlflow:5000"
    assert {"indexmem-mlflow", "indexmem-postgres"} == services
    assert all(isinstance(value, str) for value in settings.values())


def test_containers_have_resources_and_see_the_shared_folder():
    assert len(pods()) == 6
    home = of_kind("ConfigMap")["data"]["INDEXMEM_HOME"]
    for pod in pods():
        volumes = {volume["name"] for volume in pod.get("volumes", [])} | {"data"}
        for container in pod["containers"]:
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, container["name"]
            assert container["image"] in ("indexmem", "postgres:17")
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            assert set(mounts.values()) <= volumes
            assert container["name"] in ("submit", "postgres") or mounts[home] == "shared"


def test_workers_start_from_zero_spot_first_and_the_head_computes_nothing():
    cluster = of_kind("RayCluster")["spec"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    spot, on_demand = cluster["workerGroupSpecs"]
    assert spot["priority"] > on_demand["priority"]
    for group in (spot, on_demand):
        assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    capacity = "karpenter.sh/capacity-type"
    assert spot["template"]["spec"].pop("nodeSelector") == {capacity: "spot"}
    assert on_demand["template"]["spec"].pop("nodeSelector") == {capacity: "on-demand"}
    assert spot["template"] == on_demand["template"]


def test_ray_is_the_same_everywhere():
    (wanted,) = [r for r in map(Requirement, PROJECT["optional-dependencies"]["ray"]) if r.name == "ray"]
    version, python = re.search(r"^FROM rayproject/ray:([\d.]+)-py3(\d+)-gpu$", DOCKERFILE, re.MULTILINE).groups()
    assert version in wanted.specifier
    assert f"3.{python}" in Requirement(f"python{PROJECT['requires-python']}").specifier
    assert of_kind("RayCluster")["spec"]["rayVersion"] == version
    assert f"rayproject/ray:{version}-py3{python}" in (REPOSITORY / "cluster.yaml").read_text(encoding="utf-8")


def test_the_image_holds_what_is_copied_and_what_commands_name():
    copied = [word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[1:-1]]
    assert all((REPOSITORY / name).exists() for name in copied)
    home = re.search(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE)[1]
    specs = re.findall(rf"{home}/(\S+\.yaml)", "".join(path.read_text(encoding="utf-8") for path in MANIFESTS))
    assert len(specs) == 2
    assert all((REPOSITORY / spec).is_file() and spec.split("/")[0] in copied for spec in specs)


def test_commands_are_accepted_by_their_own_parsers():
    (cron,) = values(of_kind("CronJob"), "containers")
    entrypoint = of_kind("RayJob")["spec"]["entrypoint"].split()
    assert entrypoint[:3] == ["python", "-m", "indexmem"]
    assert complaint(entrypoint) is None
    submit = [*cron[0]["command"], *cron[0]["args"]]
    assert "indexmem nightly run" in submit[-1]
    assert complaint(submit) is None
    assert of_kind("CronJob")["spec"]["concurrencyPolicy"] == "Forbid"
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(REPOSITORY / "deploy" / "systemd" / "indexmem-nightly.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[0].endswith("/bin/python")
    assert complaint(["python", *words[1:]]) is None
    assert (REPOSITORY / words[-1]).is_file()


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
def test_the_operator_accepts_it(kind):
    folder = os.environ.get("KUBERAY_CRDS")
    if not folder:
        pytest.skip("KUBERAY_CRDS names no folder of the operator's schemas")
    definition = yaml.safe_load((Path(folder) / f"ray.io_{kind.lower()}s.yaml").read_text(encoding="utf-8"))
    (version,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {}
    jsonschema.Draft7Validator(schema).validate(of_kind(kind))


def strict(schema: dict) -> dict:
    """As Kubernetes reads it: unknown fields are mistakes, and a quantity is a number or a text."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    closed = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    tightened = {key: strict(value) if isinstance(value, dict) else value for key, value in schema.items()}
    return tightened | ({"additionalProperties": False} if closed else {})
