"""Writes tables that stand for a bank's: accounts and payments between them, in CSV with text keys.

    python examples/tables/make_tables.py --out bank

A twentieth of the accounts are mules: stolen money goes from mule to mule, in round sums and by night. Of four in ten
accounts it is known whether they are one.
"""

import argparse
import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np


def write(path: Path, head: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def make(out: Path, num_accounts: int = 4000, seed: int = 0) -> None:
    random, begin = np.random.default_rng(seed), datetime(2025, 1, 1)
    names = [f"DE{number:08d}" for number in random.choice(10**8, num_accounts, replace=False)]
    is_mule = random.random(num_accounts) < 0.05
    mules = np.flatnonzero(is_mule)
    is_known = random.random(num_accounts) < 0.4
    accounts: list[list[object]] = []
    for i, name in enumerate(names):
        opened = begin - timedelta(days=int(random.integers(1, 3000)))
        country = random.choice(["DE", "FR", "IT", "NL"], p=[0.7, 0.1, 0.1, 0.1])
        balance = "" if random.random() < 0.05 else round(float(random.lognormal(6, 1)), 2)
        accounts.append([name, country, opened.date(), balance, int(is_mule[i]) if is_known[i] else ""])
    write_to = out / "payments"
    write_to.mkdir(parents=True)
    write(out / "accounts.csv", ["iban", "country", "opened", "balance", "mule"], accounts)
    for month in range(3):
        payments: list[list[object]] = []
        for _ in range(5 * num_accounts):
            stolen = random.random() < 0.02
            src = random.choice(mules) if stolen and random.random() < 0.6 else random.integers(num_accounts)
            dst = random.choice(mules) if stolen else random.integers(num_accounts)
            is_round = stolen or random.random() < 0.1
            amount = float(100 * random.integers(1, 10)) if is_round else round(float(random.lognormal(3, 1)), 2)
            hour = random.integers(0, 5) if stolen and random.random() < 0.6 else random.integers(6, 24)
            when = begin + timedelta(days=int(30 * month + random.integers(30)), hours=int(hour))
            payments.append([names[src], names[dst], amount, when.isoformat()])
        write(write_to / f"2025-{month + 1:02d}.csv", ["from", "to", "amount", "paid_at"], payments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("bank"))
    parser.add_argument("--accounts", type=int, default=4000)
    options = parser.parse_args()
    make(options.out, options.accounts)
    print(f"{options.accounts} accounts in {options.out}")
