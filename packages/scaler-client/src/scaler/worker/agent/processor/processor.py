"""The question whether one is in a task, at its old path; new programs call `scaler.current_task`."""

from scaler_client.task_context import CurrentTask, current_task


class Processor:
    """What earlier engines called the process that runs a task."""

    @staticmethod
    def get_current_processor() -> CurrentTask | None:
        """The task that is calling; None outside of tasks."""
        return current_task()
