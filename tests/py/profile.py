#!/usr/bin/env python3
"""Runs a program under a container runtime's seccomp profile, by the library that runtimes use.

profile.py PROFILE.json CMD ARGS...
profile.py --kill CALL CMD ARGS...      (any call of this name ends the process by SIGSYS)
"""

import ctypes
import errno
import json
import os
import platform
import sys

ACTIONS = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_KILL_PROCESS": 0x80000000, "SCMP_ACT_KILL": 0,
           "SCMP_ACT_LOG": 0x7FFC0000}
ERRNO = 0x00050000
COMPARE = {"SCMP_CMP_NE": 1, "SCMP_CMP_LT": 2, "SCMP_CMP_LE": 3, "SCMP_CMP_EQ": 4, "SCMP_CMP_GE": 5,
           "SCMP_CMP_GT": 6, "SCMP_CMP_MASKED_EQ": 7}
ARCHES = {"amd64": "SCMP_ARCH_X86_64", "x32": "SCMP_ARCH_X32", "x86": "SCMP_ARCH_X86"}


class Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def library():
    """libseccomp.so.2, or None where it is not installed."""
    try:
        lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        return None
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    lib.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    lib.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint,
                                           ctypes.POINTER(Argument)]
    return lib


def applies(rule, caps=()):
    """Whether a rule with conditions applies on this kernel and processor, for a container with `caps`."""
    wants, refuses = rule.get("includes") or {}, rule.get("excludes") or {}
    kernel = tuple(int(n) for n in platform.release().split("-")[0].split(".")[:2])
    if wants.get("minKernel") and kernel < tuple(int(n) for n in wants["minKernel"].split(".")):
        return False
    if wants.get("arches") and not set(wants["arches"]) & set(ARCHES):
        return False
    if set(refuses.get("arches") or ()) & set(ARCHES):
        return False
    return set(wants.get("caps") or ()) <= set(caps) and not set(refuses.get("caps") or ()) & set(caps)


def action(rule, default_errno):
    name = rule["action"]
    if name != "SCMP_ACT_ERRNO":
        return ACTIONS[name]
    n = rule.get("errnoRet")
    return ERRNO | (default_errno if n is None else n)


def verdict(profile, call, caps=()):
    """0 if the profile allows the call with any arguments, otherwise the error it returns."""
    for rule in profile["syscalls"]:
        if call in rule["names"] and applies(rule, caps) and not rule.get("args"):
            if rule["action"] == "SCMP_ACT_ALLOW":
                return 0
            return rule.get("errnoRet") or errno.EPERM
    return profile.get("defaultErrnoRet") or errno.EPERM


def load(lib, profile):
    """Applies the filter to this process, and to programs that it executes."""
    default = {"action": profile["defaultAction"], "errnoRet": profile.get("defaultErrnoRet")}
    default = action(default, errno.EPERM)
    context = lib.seccomp_init(default)
    for rule in profile["syscalls"]:
        what = action(rule, errno.EPERM)
        if not applies(rule) or what == default:
            continue
        arguments = [Argument(a["index"], COMPARE[a["op"]], a.get("value", 0), a.get("valueTwo", 0))
                     for a in rule.get("args") or ()]
        for name in rule["names"]:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                # A call of another processor, or one newer than the library: refused, as by container
                # runtimes.
                continue
            array = (Argument * len(arguments))(*arguments)
            code = lib.seccomp_rule_add_array(context, what, number, len(arguments), array)
            if code:
                sys.exit(f"profile.py: {name}: {os.strerror(-code)}")
    code = lib.seccomp_load(context)
    if code:
        sys.exit(f"profile.py: seccomp_load: {os.strerror(-code)}")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--kill":
        profile = {"defaultAction": "SCMP_ACT_ALLOW",
                   "syscalls": [{"names": [sys.argv[2]], "action": "SCMP_ACT_KILL_PROCESS"}]}
        command = sys.argv[3:]
    else:
        with open(sys.argv[1]) as f:
            profile = json.load(f)
        command = sys.argv[2:]
    lib = library()
    if lib is None:
        sys.exit("profile.py: libseccomp.so.2 is missing: install libseccomp2")
    load(lib, profile)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
