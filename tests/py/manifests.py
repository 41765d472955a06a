"""Validates Kubernetes manifests against the API's schemas, strictly, and prints them as one JSON list.

manifests.py VERSION FILE...
"""

import json
import sys

import kubernetes_validate
import yaml


def main():
    version, wrong, all_ = sys.argv[1], [], []
    for name in sys.argv[2:]:
        with open(name) as f:
            documents = [d for d in yaml.safe_load_all(f) if d]
        for document in documents:
            all_.append(document)
            # Belongs to kubectl, not to the API.
            if document["apiVersion"].startswith("kustomize."):
                continue
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as e:
                path = ".".join(str(p) for p in e.path)
                wrong.append(f"{name}: {document['kind']}: {path}: {e.message}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(json.dumps(all_))


if __name__ == "__main__":
    main()
