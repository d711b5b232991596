"""moto, a model of AWS, as a server on a port; what runs in it stays until it is stopped, and nothing is executed.

Left alone, moto's tasks of ECS stop after a few looks at them, its jobs of Batch need Docker, and RunInstances starts
as few instances as it may, where AWS starts as many. A cluster of the second argument's name has room for one task.
"""

import sys
import time
from typing import Any

from moto.batch.models import Job
from moto.core.responses import ActionResult
from moto.ec2.responses.instances import InstanceResponse
from moto.ecs.models import Task
from moto.ecs.responses import EC2ContainerServiceResponse
from moto.server import main


def run_job(job: Any) -> None:
    """What the thread of a job does: it runs until it is terminated."""
    job.status = "RUNNING"
    while not job.stop:
        time.sleep(0.02)
    job._mark_stopped(success=False)


def run_task(response: Any) -> Any:
    """RunTask, as Fargate answers it where there is no room."""
    if response._get_param("cluster") == sys.argv[2]:
        tasks = response.ecs_backend.list_tasks(sys.argv[2])
        if any(task.last_status == "RUNNING" for task in tasks):
            failure = {"arn": "", "reason": "RESOURCE:FARGATE", "detail": "Capacity is unavailable at this time."}
            return ActionResult({"tasks": [], "failures": [failure]})
    return original_run_task(response)


def run_instances(response: Any) -> Any:
    """RunInstances with as many instances as it may start."""
    get = response._get_param
    response._get_param = lambda name, *more, **options: get(MOST.get(name, name), *more, **options)
    return original_run_instances(response)


MOST = {"MinCount": "MaxCount"}
original_run_task: Any = EC2ContainerServiceResponse.run_task
original_run_instances: Any = InstanceResponse.run_instances

if __name__ == "__main__":
    changes: list[tuple[type, str, Any]] = [
        (Task, "advance", lambda task: None),
        (Job, "run", run_job),
        (EC2ContainerServiceResponse, "run_task", run_task),
        (InstanceResponse, "run_instances", run_instances),
    ]
    for changed, name, function in changes:
        setattr(changed, name, function)
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
