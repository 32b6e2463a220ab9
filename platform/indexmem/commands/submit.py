"""`indexmem submit VERB SPEC`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from indexmem.commands.spec_arguments import add_spec_arguments, load_spec

if TYPE_CHECKING:
    from indexmem.commands.spec_arguments import Verbs

VERBS = ("distill", "pretrain", "eval", "sweep", "report", "sync")
TEXT = "run a verb as a job on a cluster; the job goes on when this machine leaves"


def add(verbs: Verbs) -> None:
    verb = verbs.add_parser("submit", help=TEXT, description=TEXT)
    verb.set_defaults(run=run)
    verb.add_argument("verb", choices=VERBS, help="what the job does")
    add_spec_arguments(verb)
    verb.add_argument("--address", help="job server; default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265")
    verb.add_argument("--follow", action="store_true", help="print the job's log until it ends, and end as it did")
    verb.add_argument(
        "--if-running", choices=("join", "refuse"), default="join", help="for a job with this spec that is under way"
    )
    verb.add_argument(
        "--files", choices=("send", "shared"), default="send",
        help="files that the spec names: send them, or leave them out where the nodes have them under the same paths",
    )  # fmt: skip
    verb.add_argument(
        "--code", choices=("send", "installed"), default="send", help="this package, or the one that the nodes have"
    )
    verb.add_argument(
        "--install", choices=("uv", "pip"), help="put the package's dependencies on the nodes first (not Ray)"
    )
    verb.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the job; not for secrets"
    )
    verb.add_argument("--dry-run", action="store_true", help="check the spec, print what would be sent; send nothing")


def run(arguments: argparse.Namespace) -> int:
    from indexmem.submit.job import parse_variables
    from indexmem.workflows.submit import Submission, submit

    how = Submission(
        address=arguments.address,
        if_running=arguments.if_running,
        follow=arguments.follow,
        send_files=arguments.files == "send",
        send_code=arguments.code == "send",
        installer=arguments.install,
        variables=parse_variables(arguments.env),
        dry_run=arguments.dry_run,
    )
    return submit(arguments.verb, load_spec(arguments), how)
