"""deploy/ fits itself, the package and the documentation.

Against Kubernetes' own schemas; rendered by kubectl where it is installed; and against the operator's schema, where a
checkout of it is at hand: KUBERAY_CRDS=helm-chart/kuberay-operator/crds
"""

import configparser
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from documented import REPOSITORY, complaint
from packaging.requirements import Requirement

from indexmem import __version__
from indexmem.cli import main
from indexmem.commands.sending import suites_of
from indexmem.config.load import load
from indexmem.config.nightly import load_nightly

KUBERNETES_VERSION = "1.34"
DEPLOY = REPOSITORY / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(set(KUBERNETES.glob("*.yaml")) - {KUBERNETES / "kustomization.yaml"})
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Those that are made by a person or by the operator, as the files' comments and docs/operations.md say.
SECRETS = {"indexmem-credentials", "indexmem-postgres", "indexmem"}


def documents() -> list[dict]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def of_kind(kind: str, name: str | None = None) -> dict:
    (found,) = [each for each in documents() if each["kind"] == kind and name in (None, each["metadata"].get("name"))]
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
    assert [image["name"] for image in kustomization["images"]] == ["indexmem", "indexmem-light"]
    assert {image["newTag"] for image in kustomization["images"]} == {__version__}, "no tag that moves"
    (specs,) = kustomization["configMapGenerator"]
    assert sorted(specs["files"]) == sorted(f"nightly/{path.name}" for path in (KUBERNETES / "nightly").iterdir())
    assert specs["name"] in {each["name"] for each in values(documents(), "configMap")}
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
            assert container["image"] in ("indexmem", "indexmem-light") or re.fullmatch(
                r"postgres:\d+\.\d+", container["image"]
            )
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            assert set(mounts.values()) <= volumes
            assert container["name"] in ("submit", "postgres") or mounts[home] == "shared"


def test_no_container_is_root_and_whoever_shares_a_volume_may_write_to_it():
    for pod in pods():
        user = pod["securityContext"]
        assert user["runAsNonRoot"] is True and user["runAsUser"] > 0
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        writes = any("persistentVolumeClaim" in volume for volume in pod.get("volumes", []))
        names = {container["name"] for container in pod["containers"]}
        assert "fsGroup" in user or not (writes or names == {"postgres"})
        for container in pod["containers"]:
            limits = container["securityContext"]
            assert limits == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    users = {(pod["securityContext"]["runAsUser"], pod["securityContext"].get("fsGroup")) for pod in pods()}
    assert users == {(1000, 100), (1000, None), (999, 999)}, "one owner of the shared volume; the submitter has none"


def test_servers_are_watched_while_they_start_and_serve():
    for name in ("indexmem-mlflow", "indexmem-postgres"):
        kind = "Deployment" if name == "indexmem-mlflow" else "StatefulSet"
        (container,) = of_kind(kind, name)["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


def test_the_network_lets_in_who_has_to_come_in():
    everyone, postgres = (of_kind("NetworkPolicy", name)["spec"] for name in ("indexmem", "indexmem-postgres"))
    assert everyone["policyTypes"] == postgres["policyTypes"] == ["Ingress"]
    inside, operator, prometheus = everyone["ingress"]
    assert inside == {"from": [{"podSelector": {}}]}
    assert [port["port"] for port in operator["ports"]] == [8265]
    head = of_kind("RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    measured = {port["containerPort"] for port in head["ports"] if "metrics" in port["name"]}
    assert {port["port"] for port in prometheus["ports"]} == measured
    ((client,),) = [rule["from"] for rule in postgres["ingress"]]
    assert client["podSelector"]["matchLabels"] == of_kind("Deployment")["spec"]["selector"]["matchLabels"]
    (excepted,) = everyone["podSelector"]["matchExpressions"]
    assert excepted["values"] == [postgres["podSelector"]["matchLabels"]["app"]]


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
    bases = re.findall(r"^FROM rayproject/ray:([\d.]+)-py3(\d+)(-gpu)? AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert [base[2:] for base in bases] == [("", "light"), ("-gpu", "nodes")], "the last one is built by default"
    ((version, python),) = {base[:2] for base in bases}
    assert version in wanted.specifier
    assert f"3.{python}" in Requirement(f"python{PROJECT['requires-python']}").specifier
    assert of_kind("RayCluster")["spec"]["rayVersion"] == version
    assert f"rayproject/ray:{version}-py3{python}" in (REPOSITORY / "cluster.yaml").read_text(encoding="utf-8")


def test_the_image_holds_what_is_copied_and_what_commands_name():
    nodes = DOCKERFILE.partition(" AS nodes")[2]
    copied = [
        word for line in re.findall(r"^COPY --chown=ray (.*)$", nodes, re.MULTILINE) for word in line.split()[:-1]
    ]
    assert all((REPOSITORY / name).exists() for name in copied)
    home = re.search(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE)[1]
    specs = re.findall(rf"{home}/(\S+\.yaml)", "".join(path.read_text(encoding="utf-8") for path in MANIFESTS))
    assert specs == ["sweeps/smoke.yaml"]
    assert all((REPOSITORY / spec).is_file() and spec.split("/")[0] in copied for spec in specs)


def test_commands_are_accepted_by_their_own_parsers():
    (cron,) = values(of_kind("CronJob"), "containers")
    (words,) = [[*container["command"], *container["args"]] for container in cron]
    assert complaint(words) is None
    assert words[:5] == ["python", "-m", "indexmem", "submit", "nightly"] and words[5] == "/etc/indexmem/nightly.yaml"
    assert all(" " not in word for word in words), "one argument, one word"
    entrypoint = of_kind("RayJob")["spec"]["entrypoint"].split()
    assert entrypoint[:3] == ["python", "-m", "indexmem"]
    assert complaint(entrypoint) is None
    assert entrypoint[3] == "run", "modules that a spec compares are trained first"
    assert "run.wait_for_nodes=1800" in entrypoint
    assert of_kind("CronJob")["spec"]["concurrencyPolicy"] == "Forbid"
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(REPOSITORY / "deploy" / "systemd" / "indexmem-nightly.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[0].endswith("/bin/python")
    assert complaint(["python", *words[1:]]) is None
    assert (REPOSITORY / words[-1]).is_file()


def test_the_night_waits_for_nodes_and_its_specs_are_whole(capsys):
    folder = KUBERNETES / "nightly"
    assert load(folder / "smoke.yaml") == load(REPOSITORY / "sweeps" / "smoke.yaml")
    assert "extends" not in yaml.safe_load((folder / "smoke.yaml").read_text(encoding="utf-8"))
    nightly, plain = load_nightly(folder / "nightly.yaml"), load_nightly(REPOSITORY / "sweeps" / "nightly.yaml")
    (here, there) = (set(each.suites[0].overrides) for each in (nightly, plain))
    assert there < here, "the same night, on nodes that have to come first"
    (suite,) = suites_of(nightly).values()
    assert suite.run.wait_for_nodes == 1800 and suite.grid.gpus_per_actor == 1 and suite.distill.use_gpu
    assert nightly.timezone == of_kind("CronJob")["spec"]["timeZone"]
    assert nightly.cron == of_kind("CronJob")["spec"]["schedule"]
    assert main(["submit", "nightly", str(folder / "nightly.yaml"), "--code", "installed", "--dry-run"]) == 0
    assert "python -m indexmem nightly run spec.yaml" in capsys.readouterr().err


def test_locked_versions_are_those_that_the_package_asks_for():
    extras = PROJECT["optional-dependencies"]
    wanted = [text for extra in ("ray", "mlflow", "report", "benchmarks", "gpu") for text in extras[extra]]
    locked = pinned("requirements.txt")
    for requirement in map(Requirement, PROJECT["dependencies"] + wanted):
        if requirement.name != "ray":  # the base image's own
            assert locked[requirement.name] in requirement.specifier, requirement
    light = pinned("requirements-light.txt")
    assert {"mlflow", "psycopg2-binary", "pydantic"} <= light.keys() and "torch" not in light
    assert {name: locked[name] for name in light.keys() & locked.keys()} == {
        name: light[name] for name in light.keys() & locked.keys()
    }


def pinned(name: str) -> dict[str, str]:
    lines = (DEPLOY / name).read_text(encoding="utf-8").splitlines()
    return dict(line.partition(" ")[0].split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("document", documents(), ids=lambda each: f"{each['kind']}-{each['metadata'].get('name')}")
def test_kubernetes_accepts_it(document):
    if not document["apiVersion"].startswith("ray.io/"):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_kustomize_renders_it():
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    (specs,) = [each for each in rendered if each["metadata"]["name"].startswith("indexmem-nightly-")]
    assert specs["data"].keys() == {"nightly.yaml", "smoke.yaml"}
    assert specs["metadata"]["name"] in done.stdout.partition("kind: CronJob")[2], "the CronJob follows a changed spec"
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert all(re.search(r":\d[\d.]+$", image) for image in images)


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
