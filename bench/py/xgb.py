"""Trains a gradient-boosted model (xgboost, else scikit-learn) and prints its digest and seconds.

Arguments: rows, rounds.
"""

import hashlib
import sys
import time

import numpy as np

rows, rounds = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(7)
x = rng.normal(size=(rows, 50)).astype(np.float32).round(2)
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0.2).astype(np.int32)
began = time.monotonic()
try:
    import xgboost

    data = xgboost.DMatrix(x, label=y)
    model = xgboost.train(
        {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "nthread": 2, "seed": 1},
        data, rounds)
    digest = hashlib.sha256(model.save_raw("json")).hexdigest()
    p = model.predict(data)
except ImportError:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(max_iter=rounds, random_state=1, early_stopping=False)
    model.fit(x, y)
    p = model.predict_proba(x)[:, 1]
    digest = ""
order = np.argsort(p, kind="stable")
digest += hashlib.sha256(x[order].tobytes()).hexdigest()[:16]
print(f"digest {digest}")
print(f"seconds {time.monotonic() - began:.3f}")
