"""A program that attacks a cluster: `python -m attacker ADDRESS VICTIM [KEYS]` prints what each attack got, as JSON.

VICTIM is the number of another client's session, as monitors show it, and its task that waits; KEYS the directory of
the attacker's keys. Floods of memory are in support/memory_attacks.py: `ATTACKS` of attacker.attacks is where further
ones go.
"""
