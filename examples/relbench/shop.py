"""A shop as a RelBench database: customers, products and purchases, with two tasks that history tells something of."""

import numpy as np
import pandas as pd
from relbench.base import Database, Dataset, EntityTask, RecommendationTask, Table, TaskType
from relbench.metrics import roc_auc

NUM_CUSTOMERS, NUM_PRODUCTS, NUM_KINDS, NUM_DAYS = 2000, 240, 12, 420


class Shop(Dataset):
    """Customers buy what they like, until they leave; nothing says when, but that they buy no more."""

    val_timestamp = pd.Timestamp("2024-01-01")
    test_timestamp = pd.Timestamp("2024-02-01")

    def make_db(self) -> Database:
        random = np.random.default_rng(7)
        kind = random.integers(0, NUM_KINDS, NUM_PRODUCTS)
        taste = random.integers(0, NUM_KINDS, (NUM_CUSTOMERS, 2))
        rate = random.gamma(2.0, 0.03, NUM_CUSTOMERS)  # purchases per day
        leaves = random.integers(60, 2 * NUM_DAYS, NUM_CUSTOMERS)
        count = random.poisson(rate * np.minimum(leaves, NUM_DAYS))
        customer = np.repeat(np.arange(NUM_CUSTOMERS), count)
        day = random.random(len(customer)) * np.minimum(leaves, NUM_DAYS)[customer]
        liked = taste[customer, random.integers(0, 2, len(customer))]
        by_kind = [np.flatnonzero(kind == each) for each in range(NUM_KINDS)]
        # Of each kind some products are bought far more than others.
        chosen = np.array([by_kind[each][min(int(random.exponential(3)), len(by_kind[each]) - 1)] for each in liked])
        product = np.where(random.random(len(customer)) < 0.8, chosen, random.integers(0, NUM_PRODUCTS, len(customer)))
        order = np.argsort(day, kind="stable")
        start = self.test_timestamp + pd.Timedelta(days=31 - NUM_DAYS)
        customers = pd.DataFrame({"customer": np.arange(NUM_CUSTOMERS), "age": random.integers(18, 90, NUM_CUSTOMERS)})
        customers["region"] = random.choice(["north", "south", "west"], NUM_CUSTOMERS)
        products = pd.DataFrame({"product": np.arange(NUM_PRODUCTS), "price": random.lognormal(2, 1, NUM_PRODUCTS)})
        products["kind"] = [f"kind {each}" for each in kind]
        purchases = pd.DataFrame({"purchase": np.arange(len(order)), "customer": customer[order]})
        purchases["product"], purchases["amount"] = product[order], random.integers(1, 4, len(order))
        # In nanoseconds, which RelBench takes times for.
        purchases["at"] = (start + pd.to_timedelta(day[order], unit="D")).astype("datetime64[ns]")
        of = {"customer": "customers", "product": "products"}
        return Database(
            {
                "customers": Table(customers, {}, "customer"),
                "products": Table(products, {}, "product"),
                "purchases": Table(purchases, of, "purchase", "at"),
            }
        )


def _windows(db, timestamps, timedelta):
    """The purchases of each window that begins at a time, with that time."""
    bought = db.table_dict["purchases"].df
    for each in timestamps:
        yield each, bought[(bought["at"] > each) & (bought["at"] <= each + timedelta)], bought[bought["at"] <= each]


def _table(parts, of):
    whole = pd.concat(parts, ignore_index=True)
    return Table(whole.astype({"time": "datetime64[ns]", "customer": "int64"}), of, None, "time")


class Stays(EntityTask):
    """Whether a customer who has bought something buys something in the next 30 days."""

    entity_table, entity_col, time_col, target_col = "customers", "customer", "time", "stays"
    task_type, timedelta, metrics = TaskType.BINARY_CLASSIFICATION, pd.Timedelta(days=30), [roc_auc]

    def make_table(self, db, timestamps):
        parts = []
        for time, window, before in _windows(db, timestamps, self.timedelta):
            known = np.sort(before["customer"].unique())
            stays = np.isin(known, window["customer"]).astype(int)
            parts.append(pd.DataFrame({"time": time, "customer": known, "stays": stays}))
        return _table(parts, {"customer": "customers"})


def map_at_k(is_in, num_true):
    """Mean average precision of ranked predictions ``[rows, k]``."""
    precision = np.cumsum(is_in, 1) / np.arange(1, is_in.shape[1] + 1)
    return float(np.mean((precision * is_in).sum(1) / np.minimum(num_true, is_in.shape[1])))


class Buys(RecommendationTask):
    """Which products a customer buys in the next 30 days."""

    src_entity_table, src_entity_col, dst_entity_table, dst_entity_col = "customers", "customer", "products", "product"
    time_col, eval_k, task_type = "time", 10, TaskType.RECOMMENDATION
    timedelta, metrics = pd.Timedelta(days=30), [map_at_k]

    def make_table(self, db, timestamps):
        parts = []
        for time, window, _ in _windows(db, timestamps, self.timedelta):
            taken = window.groupby("customer")["product"].agg(lambda each: sorted(set(each))).reset_index()
            parts.append(taken.assign(time=time))
        return _table(parts, {"customer": "customers", "product": "products"})
