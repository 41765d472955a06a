"""Trains gradient-boosted trees on HIGGS-shaped data and prints their quality.

xgboost_higgs.py FILE ROUNDS
"""

import json
import sys
import time

import numpy as np
import xgboost


def main():
    path, rounds = sys.argv[1], int(sys.argv[2])
    table = np.fromfile(path, np.float32).reshape(-1, 29)
    held_out = len(table) // 20
    test = table[:held_out].copy()
    began = time.monotonic()
    data = xgboost.DMatrix(table[held_out:, 1:], label=table[held_out:, 0], nthread=2)
    rows = len(table) - held_out
    del table
    model = xgboost.train(
        {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 8, "eta": 0.1, "nthread": 2, "seed": 1},
        data, rounds)
    seconds = time.monotonic() - began
    p = model.predict(xgboost.DMatrix(test[:, 1:], nthread=2))
    y = test[:, 0]
    loss = float(-np.mean(np.where(y > 0.5, np.log(p), np.log1p(-p)).astype(np.float64)))
    right = float(np.mean((p > 0.5) == (y > 0.5)))
    # Sums over threads may differ in their last digits.
    answer = f"{rows} rows, {rounds} rounds: loss {loss:.3f}, {right * 100:.1f} % of {held_out} right"
    print(json.dumps({"answer": answer, "seconds": round(seconds, 3)}))


if __name__ == "__main__":
    main()
