"""cluster.yaml against Ray's own schema and defaults, without a cloud SDK, and against what the package expects."""

import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from ray.autoscaler._private.util import prepare_config, validate_config

REPOSITORY = Path(__file__).parents[1]
TEXT = (REPOSITORY / "cluster.yaml").read_text(encoding="utf-8")


@pytest.fixture
def cluster():
    """A fresh copy, as Ray completes it before it starts anything."""
    config = prepare_config(yaml.safe_load(TEXT))
    validate_config(config)
    return config


def project() -> dict:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_ray_accepts_it_and_would_refuse_a_typing_mistake(cluster):
    assert cluster["head_node_type"] == "head"
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout_minuts"):
        validate_config(cluster | {"idle_timeout_minuts": 10})


def test_the_head_takes_no_work_and_idle_gpu_workers_end(cluster):
    head, *workers = cluster["available_node_types"].values()
    assert head["resources"] == {"CPU": 0}
    assert head["max_workers"] == 0
    for worker in workers:
        assert worker["resources"]["GPU"] >= 1
        assert worker["resources"]["CPU"] >= worker["resources"]["GPU"]
        assert 0 == worker["min_workers"] < worker["max_workers"] <= cluster["max_workers"]
    assert 0 < cluster["idle_timeout_minutes"] <= 30


def test_spot_workers_come_first_and_on_demand_ones_differ_in_nothing_else(cluster):
    spot, on_demand = (cluster["available_node_types"][name] for name in ("gpu_spot", "gpu_on_demand"))
    assert spot["node_config"].pop("InstanceMarketOptions") == {"MarketType": "spot"}
    assert spot.pop("priority") > on_demand.pop("priority")
    assert spot == on_demand


def test_images_have_the_ray_and_python_that_the_package_asks_for(cluster):
    images = [cluster["docker"]["head_image"], cluster["docker"]["worker_image"]]
    (wanted,) = [r for r in map(Requirement, project()["optional-dependencies"]["ray"]) if r.name == "ray"]
    for image in images:
        version, python = re.fullmatch(r"rayproject/ray:([\d.]+)-py3(\d+)(?:-gpu)?", image).groups()
        assert version in wanted.specifier
        assert f"3.{python}" in Requirement(f"python{project()['requires-python']}").specifier
    assert images[1].endswith("-gpu")


def test_every_node_installs_the_package_and_sees_the_shared_folder(cluster):
    for commands in ("head_setup_commands", "worker_setup_commands"):
        done = "\n".join(cluster[commands])
        locked = done.index("--requirement /home/ray/indexmem/deploy/requirements.txt")
        assert locked < done.index("--no-deps --editable /home/ray/indexmem")
    assert (REPOSITORY / "deploy" / "requirements.txt").is_file()
    assert cluster["file_mounts"]["/home/ray/indexmem"] == "."
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = [command for command in cluster[commands] if "ray start" in command]
        assert re.search(r"export INDEXMEM_HOME=/srv/indexmem[ ;]", start)
    assert any("--volume /srv/indexmem:/srv/indexmem" in option for option in cluster["docker"]["run_options"])
    assert any(command.endswith("/srv/indexmem") for command in cluster["initialization_commands"])


def test_nobody_without_the_token_runs_anything(cluster):
    assert cluster["file_mounts"]["/home/ray/.ray/auth_token"].endswith("/.ray/auth_token")
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = [command for command in cluster[commands] if "ray start" in command]
        assert re.search(r"export .*RAY_AUTH_MODE=token.*ray start", start, re.DOTALL)


def test_nothing_in_it_belongs_to_an_account():
    for secret in ("ssh_private_key", "KeyName", "SubnetId", "SecurityGroup", "arn:", "AWS_"):
        assert secret not in TEXT
    assert not re.search(r"\b(\d{12}|(ami|subnet|sg|vpc|fs)-[0-9a-f]{8,})\b", TEXT)
