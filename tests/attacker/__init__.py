"""A program that attacks a cluster: `python -m attacker ADDRESS SESSION TASK [KEYS]` prints what each attack got.

SESSION and TASK are the numbers of another client's session, as monitors show it, and of its task that waits; KEYS is
the directory of the attacker's keys. Floods of memory are in support/memory_attacks.py.
"""
