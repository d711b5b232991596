"""Rules of the waterfall, and what is said about wrong ones."""

import pytest

from scaler_scheduler.scaling.rules import Rule, parse_rules


def test_rules_have_comments_and_blank_lines() -> None:
    text = """
    # the own hosts first
    1, native
    2,slurm,64   # the batch system next
    2,ecs,-1

    """
    assert parse_rules(text) == {
        "native": Rule(1, "native"),
        "slurm": Rule(2, "slurm", 64),
        "ecs": Rule(2, "ecs", -1),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no rule: write at least one line"),
        ("# nothing\n\n", "there is no rule: write at least one line"),
        ("1", "line 1, '1': 1 fields: write priority,worker_manager_id[,max_task_concurrency]"),
        ("1,a,2,3", "line 1, '1,a,2,3': 4 fields: write priority,worker_manager_id[,max_task_concurrency]"),
        ("1,a\nfirst,b", "line 2, 'first,b': priority 'first' is not a whole number"),
        ("1,a,many", "line 1, '1,a,many': max_task_concurrency 'many' is not a whole number"),
        ("1,a,-2", "line 1, '1,a,-2': max_task_concurrency -2 is negative: write a number of workers, or -1"),
        ("1,", "line 1, '1,': the worker manager id is empty"),
        ("1,a\n\n2,a", "line 3, '2,a': worker manager 'a' has a rule already: leave one of both"),
    ],
)
def test_a_wrong_rule_is_named_with_its_line_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_rules(text)
    assert str(raised.value).startswith(message)
