"""Trains small models and prints a digest of their bytes: any wrong bit shows.

Arguments: rows, trees.
"""

import hashlib
import pickle
import sys

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.ensemble import RandomForestClassifier

rows, trees = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(42)
x = np.round(rng.normal(size=(rows, 40)), 2)
y = ((x[:, 0] * x[:, 1] + x[:, 2] > 0.3).astype(np.int64) + (x[:, 3] > 1)).astype(np.int64)


def digest(name, data):
    print(name, hashlib.sha256(data).hexdigest(), flush=True)


order = rng.permutation(rows)
gathered = x[order]
digest("gather", gathered.tobytes())
digest("sort", np.sort(gathered, axis=0).tobytes())
forest = RandomForestClassifier(n_estimators=trees, max_depth=14, n_jobs=2, random_state=1)
forest.fit(x, y)
digest("forest", pickle.dumps([t.tree_.__getstate__() for t in forest.estimators_]))
digest("predict", forest.predict(gathered).tobytes())
k = MiniBatchKMeans(n_clusters=8, n_init=1, max_iter=5, batch_size=4096, random_state=1)
digest("kmeans", k.fit(gathered).cluster_centers_.round(6).tobytes())
table = {int(v * 100): i for i, v in enumerate(x.ravel()[:200_000])}
digest("dict", repr(sorted(table.items())).encode())
