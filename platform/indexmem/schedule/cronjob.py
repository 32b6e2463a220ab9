"""A Kubernetes CronJob that starts nights in a pod of their own."""

from __future__ import annotations

import yaml

from indexmem.schedule.call import STOP_SECONDS, Call


def kubernetes_cronjob(call: Call, image: str, path: str) -> str:
    """A CronJob manifest; `path` is that of the nightly spec in the image."""
    container = {
        "name": "nightly",
        "image": image,
        "command": ["python", "-m", "indexmem", "nightly", "run", path, *call.overrides],
        "env": [{"name": name, "value": value} for name, value in call.environment.items()],
        "envFrom": [{"secretRef": {"name": "indexmem-nightly", "optional": True}}],
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": STOP_SECONDS, "containers": [container]}
    # A verdict other than fine is an exit code, too, and no reason to start again.
    ends = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2, 3, 4]}}
    job = {"backoffLimit": 3, "podFailurePolicy": {"rules": [ends]}, "template": {"spec": pod}}
    spec = {
        "schedule": call.spec.cron,
        **({"timeZone": call.spec.timezone} if call.spec.timezone else {}),
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 6 * 3600,
        "jobTemplate": {"spec": job},
    }
    manifest = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": call.name}, "spec": spec}
    return yaml.safe_dump(manifest, sort_keys=False)
