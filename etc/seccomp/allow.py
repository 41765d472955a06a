#!/usr/bin/env python3
"""Prints a container runtime's seccomp profile with the calls allowed that canvas makes.

etc/seccomp/allow.py [DEFAULT.json] > canvas.json

The rest of the profile stays as it is. Use it where docker.json, podman.json and kubernetes.json
beside this file are not what you start from: DEFAULT.json is your runtime's default profile, or the
profile that you give your containers today.
"""

import json
import sys

# userfaultfd is needed. With process_madvise many pages are given back at the cost of one TLB flush
# (Linux 6.13), and with futex_waitv an agent of many tenants sleeps until one of them calls.
CALLS = ["futex_waitv", "process_madvise", "userfaultfd"]
ALLOW = "SCMP_ACT_ALLOW"


def allowed(profile):
    """The profile, changed in no more than what it does with CALLS."""
    rules = []
    for rule in profile["syscalls"]:
        names = [n for n in rule.get("names", [rule.get("name")]) if n not in CALLS]
        if names:
            # Two rules for one call that say different things are refused by libseccomp.
            rules.append({**rule, "names": names})
    return {**profile, "syscalls": [*rules, {"names": CALLS, "action": ALLOW}]}


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__.strip())
    try:
        with open(sys.argv[1]) if len(sys.argv) == 2 else sys.stdin as f:
            profile = json.load(f)
        text = json.dumps(allowed(profile), indent="\t")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        sys.exit(f"allow.py: this is no seccomp profile in JSON: {e!r}")
    print(text)


if __name__ == "__main__":
    main()
