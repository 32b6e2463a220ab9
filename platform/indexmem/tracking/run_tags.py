"""What every published run says about itself: its spec, the job that made it, the code that ran."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from indexmem.config.modules import TRAINED
from indexmem.config.schema import Experiment
from indexmem.config.spec import flatten
from indexmem.extras import JOB_VARIABLE

SUBMISSION_TAG, JOB_PAGE_TAG = "ray.submission_id", "ray.job_page"
DASHBOARD_VARIABLE = "INDEXMEM_RAY_DASHBOARD"


def published_spec(experiment: Experiment) -> dict[str, Any]:
    """The spec without where results go: that changes no result, and an address may carry credentials.

    Without the sweep, too, whose trials are specs of their own, and without pre-training, which makes a backbone.
    """
    return experiment.model_dump(mode="json", exclude={"tracking", "run", "sweep", "pretrain"})


def published_params(experiment: Experiment) -> dict[str, Any]:
    """Settings of `published_spec` by dotted name, without defaults that a named checkpoint need not share."""
    params, indexer = flatten(published_spec(experiment)), experiment.indexer
    unsaid = {*TRAINED} - indexer.model_fields_set if indexer.checkpoint else set()
    return {name: value for name, value in params.items() if name.removeprefix("indexer.") not in unsaid}


def common_tags(experiment: Experiment, verb: str, commits: Iterable[str] = ()) -> dict[str, str]:
    """Tags of any run: spec, user, source (`verb` is the command, as in 'eval'), commit, Ray job."""
    commit = ",".join(sorted(set(commits) - {""}))
    tags = {"spec": experiment.name, "git_commit": commit, "mlflow.user": _user()}
    tags |= {"mlflow.source.name": f"indexmem {verb}", "mlflow.source.type": "JOB"}
    if commit and "," not in commit:
        tags["mlflow.source.git.commit"] = commit.removesuffix("-dirty")
    return tags | job_tags()


def job_tags() -> dict[str, str]:
    """Submission id of the Ray job that runs this process, and its page if INDEXMEM_RAY_DASHBOARD has the address.

    Empty outside a submitted job.
    """
    job = json.loads(os.environ.get(JOB_VARIABLE) or "{}")
    submission = job.get("metadata", {}).get("job_submission_id")
    if not submission:
        return {}
    dashboard = os.environ.get(DASHBOARD_VARIABLE)
    return {SUBMISSION_TAG: submission} | ({JOB_PAGE_TAG: dashboard_page(dashboard, submission)} if dashboard else {})


def dashboard_page(dashboard: str, submission: str) -> str:
    """Address of a job's page in the Ray dashboard at the address `dashboard`."""
    return f"{dashboard.rstrip('/')}/#/jobs/{quote(submission)}"


def job_links() -> dict[str, str]:
    """Text -> address of the page of the Ray job that runs this process; empty where it is not known."""
    tags = job_tags()
    return {f"Ray job {tags[SUBMISSION_TAG]}": tags[JOB_PAGE_TAG]} if JOB_PAGE_TAG in tags else {}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"
