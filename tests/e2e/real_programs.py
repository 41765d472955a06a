"""Common programs with a quarter of their memory local: their output equals that without canvas.

Each is a row of PROGRAMS; a row's function prepares its files, runs it, and returns the answer.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys

from lib.harness import Failure, program

from .servers import missing


def digest(path):
    """Digest of all files below a directory, with their names."""
    found = hashlib.sha256()
    for home, dirs, files in os.walk(path):
        dirs.sort()
        for name in sorted(files):
            full = os.path.join(home, name)
            with open(full, "rb") as f:
                found.update(f"{os.path.relpath(full, path)}\0".encode() + hashlib.sha256(f.read()).digest())
    return found.hexdigest()


def tree(r, files):
    """Writes {name: text} below the test's directory, for its user."""
    for name, text in files.items():
        path = r.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
    if r.user:
        subprocess.run(["chown", "-R", str(r.user.pw_uid), r.dir], check=True)


def shell(r, script, tag, **env):
    """Runs a script of several steps in the test's directory; returns its output."""
    return r.call(["bash", "-euo", "pipefail", "-c", script], tag=tag, env=env).out()


# -- node ----------------------------------------------------------------------------------------
MODULE = """
export interface Row{i} {{ id: number; name: string; next?: Row{i}; tags: ReadonlyArray<string> }}
export class Table{i}<T extends Row{i}> {{
  private rows = new Map<number, T>();
  add(row: T): this {{ this.rows.set(row.id, row); return this; }}
  sum(): number {{ let s = {i}; for (const r of this.rows.values()) s += r.id * r.tags.length; return s; }}
}}
export const made{i} = (n: number) => {{
  const t = new Table{i}<Row{i}>();
  for (let k = 0; k < n; k++) t.add({{ id: k, name: `row ${{k}}`, tags: ["a", "b"].slice(k % 2) }});
  return t.sum();
}};
"""


def typescript(r):
    """Compiles a project, and runs its program."""
    count = r.size(40, 400)
    files = {f"src/m{i}.ts": MODULE.format(i=i) for i in range(count)}
    files["src/main.ts"] = "".join(f'import {{ made{i} }} from "./m{i}";\n' for i in range(count)) + (
        "declare const console: { log(...a: unknown[]): void };\n"
        f"console.log({' + '.join(f'made{i}({i})' for i in range(count))});\n")
    files["tsconfig.json"] = ('{"compilerOptions": {"strict": true, "target": "es2020", "module": "commonjs", '
                              '"types": [], "declaration": true, "outDir": "out"}, "include": ["src"]}')
    tree(r, files)
    said = shell(r, "tsc -p . && node out/main.js", "tsc")
    return said, digest(r.path("out"))


def npm(r):
    """Packs a package, and installs it as another's dependency, without a network."""
    tree(r, {
        "leaf/package.json": '{"name": "leaf", "version": "1.2.3", "main": "index.js"}',
        "leaf/index.js": "module.exports = n => n * 7;\n",
        "app/package.json": '{"name": "app", "version": "1.0.0", "scripts": {"start": "node run.js"}}',
        "app/run.js": "console.log(require('leaf')(6));\n",
    })
    said = shell(r, "cd leaf && npm pack --silent && cd ../app && npm install --silent ../leaf/leaf-1.2.3.tgz && "
                 "npm ls && npm run --silent start", "npm",
                 npm_config_offline="true", npm_config_audit="false", npm_config_fund="false",
                 npm_config_update_notifier="false")
    return said.replace(r.dir, "DIR"), digest(r.path("app/node_modules/leaf"))


# -- CPython -------------------------------------------------------------------------------------
@functools.cache
def tested_python():
    """An interpreter that has its own tests."""
    for exe in ("/usr/bin/python3", sys.executable):
        if os.path.exists(exe) and subprocess.run([exe, "-c", "import test.test_os"], capture_output=True,
                                                  cwd="/").returncode == 0:
            return exe
    return None


def cpython_missing():
    return None if tested_python() else "no python3 with its own tests (tests/packages.txt)"


def cpython(name, *without):
    def run(r):
        c = r.call([tested_python(), "-B", r.source("py/cpython.py"), name, *without], tag=name)
        return [line for line in c.out().splitlines() if line.startswith("test.")]

    return run


# -- fio -----------------------------------------------------------------------------------------
def fio(engine, blocks, refused_by=None):
    """Writes at random, then reads all and compares; `refused_by` is fio's message where canvas refuses an engine."""

    def run(r):
        argv = ["fio", "--name=verify", f"--directory={r.dir}", f"--ioengine={engine}", "--rw=randwrite",
                f"--bs={blocks}", f"--size={r.size(64, 512)}M", "--iodepth=16", "--iomem=mmap",
                "--verify=crc32c", "--verify_fatal=1", "--randseed=11", "--minimal"]
        c = r.start(argv, tag="fio")
        code = r.wait(c, expect=None)
        if refused_by and code and refused_by in c.out() + c.err():
            return "right, or refused at set-up"
        if code or "verify:" in c.err():
            raise Failure(f"exit code {code}\n{c.tail()}")
        return "right, or refused at set-up" if refused_by else "right"

    return run


# -- sandboxes -----------------------------------------------------------------------------------
INSIDE = """
import hashlib, os, subprocess, sys
kept = [hashlib.sha256(b"%d" % i).digest() * 128 for i in range(int(sys.argv[1]) * 256)]
child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid() < 1000)"], capture_output=True, text=True)
pid = os.fork()
if pid == 0:
    os._exit(all(k == hashlib.sha256(b"%d" % i).digest() * 128 for i, k in enumerate(kept)))
print(child.stdout.strip(), os.waitpid(pid, 0)[1] >> 8, hashlib.sha256(b"".join(kept)).hexdigest())
"""


def sandboxed(*argv):
    def run(r):
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        return r.call([*argv, python, "-c", INSIDE, r.size(48, 300)], tag="sandbox").out()

    return run


def user_namespaces_missing(*commands):
    def check():
        if absent := missing(*commands)():
            return absent
        try_it = ["setpriv", "--reuid", "65534", "--clear-groups", "--"] if os.getuid() == 0 else []
        p = subprocess.run([*try_it, "unshare", "-r", "true"], capture_output=True, cwd="/")
        return "ordinary users cannot make user namespaces here" if p.returncode else None

    return check


BWRAP = ("bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--dev", "/dev")
UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


# -- git and builds ------------------------------------------------------------------------------
GIT = r"""
export GIT_AUTHOR_DATE=@1000000000 GIT_COMMITTER_DATE=@1000000000
git init -q -b main big && cd big
git config user.name a; git config user.email a@b; git config gc.autoDetach false; git config pack.threads 2
git fast-import --quiet < ../history
git reset -q --hard main
git gc -q --prune=now
git fsck --full --strict --no-dangling
git repack -q -a -d -f --depth=20 --window=10
git clone -q --no-local . ../copy
cd ../copy && git fsck --full
git grep -c 'line 7[0-9]* ' | sha256sum
git log --stat --format='%H %s' | sha256sum
git blame -s dir3/file3 | sha256sum
git rev-parse HEAD 'HEAD^{tree}'
git count-objects -v | grep -E '^(count|in-pack|packs|garbage)'
"""


def history(files, commits):
    """A repository for git fast-import."""
    yield "reset refs/heads/main\n"
    for c in range(commits):
        text = f"commit {c}"
        yield (f"commit refs/heads/main\ncommitter a <a@b> {1000000000 + c} +0000\n"
               f"data {len(text)}\n{text}\n")
        for k in range(files if c == 0 else 10):
            n = k if c == 0 else (c * 37 + k * 11) % files
            lines = 20_000 if n % 50 == 0 else 120
            body = "".join(f"line {i} of file {n} {(i * n + c * (i % 7)) % 1009}\n" for i in range(lines))
            yield f"M 100644 inline dir{n % 50}/file{n}\ndata {len(body)}\n{body}\n"


def git(r):
    tree(r, {"history": "".join(history(r.size(400, 6000), r.size(30, 1500)))})
    return shell(r, GIT, "git", GIT_CONFIG_NOSYSTEM="1")


def c_build(r):
    """make -j2 with link-time optimisation; the program is equal to the byte."""
    count = r.size(8, 60)
    files = {f"m{i}.c": f"""#include <stdlib.h>
#include <string.h>
#include <stdio.h>
struct node{i} {{ struct node{i} *next; long key; char text[{16 + i}]; }};
long work{i}(long n) {{
    struct node{i} *head = 0; long sum = {i};
    for (long k = 0; k < n; k++) {{ struct node{i} *e = malloc(sizeof *e); e->next = head; e->key = k * {i + 3};
        snprintf(e->text, sizeof e->text, "%ld", k); head = e; }}
    while (head) {{ struct node{i} *e = head; sum = sum * 31 + e->key + strlen(e->text); head = e->next; free(e); }}
    return sum;
}}
""" for i in range(count)}
    files["main.c"] = ("#include <stdio.h>\n" + "".join(f"long work{i}(long);\n" for i in range(count)) +
                       "int main(void) { long s = 0;\n" + "".join(f"s ^= work{i}({i} + 9);\n" for i in range(count)) +
                       'printf("%ld\\n", s); return 0; }\n')
    objects = " ".join(f"m{i}.o" for i in range(count)) + " main.o"
    files["Makefile"] = (f"CFLAGS = -O2 -g -flto -ffile-prefix-map=$(CURDIR)=.\nprog: {objects}\n"
                         "\t$(CC) $(CFLAGS) -flto=2 -o $@ $^\n")
    tree(r, {f"c/{name}": text for name, text in files.items()})
    return shell(r, "cd c && make -s -j2 && ./prog && sha256sum < prog", "make")


def rust_build(r):
    """Two jobs, without a network and without dependencies: libraries and a program that uses them."""
    count = r.size(4, 24)
    files = {}
    for i in range(count):
        files[f"l{i}/Cargo.toml"] = f'[package]\nname = "l{i}"\nversion = "0.1.0"\nedition = "2021"\n'
        files[f"l{i}/src/lib.rs"] = f"""use std::collections::BTreeMap;
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {{ Number(u64), Text(String), Pair(Box<Key>, Box<Key>) }}
pub fn work(n: u64) -> u64 {{
    let mut map = BTreeMap::new();
    for k in 0..n {{
        let key = match k % 3 {{ 0 => Key::Number(k), 1 => Key::Text(format!("{{k}}")),
            _ => Key::Pair(Box::new(Key::Number(k)), Box::new(Key::Text("x".repeat({i} + 1)))) }};
        map.entry(key).and_modify(|v| *v += k).or_insert(k * {i + 3});
    }}
    map.iter().fold({i}, |a, (k, v)| a.wrapping_mul(31).wrapping_add(*v + format!("{{k:?}}").len() as u64))
}}
"""
    deps = "".join(f'l{i} = {{ path = "../l{i}" }}\n' for i in range(count))
    files["app/Cargo.toml"] = '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n' + deps
    files["app/src/main.rs"] = ("fn main() { println!(\"{}\", " +
                                " ^ ".join(f"l{i}::work({i} + 50)" for i in range(count)) + "); }\n")
    members = ", ".join(f'"l{i}"' for i in range(count))
    files["Cargo.toml"] = f'[workspace]\nresolver = "2"\nmembers = ["app", {members}]\n'
    tree(r, {f"rust/{name}": text for name, text in files.items()})
    home = os.path.expanduser("~")
    return shell(r, "cd rust && cargo build -q --offline -j2 && target/debug/app && "
                 "cargo run -q --offline -j2 --release && cargo test -q --offline -j2 -p l1 | grep -c ok", "cargo",
                 CARGO_HOME=os.environ.get("CARGO_HOME", f"{home}/.cargo"), CARGO_NET_OFFLINE="true",
                 RUSTUP_HOME=os.environ.get("RUSTUP_HOME", f"{home}/.rustup"), CARGO_TARGET_DIR=r.path("rust/target"))


# Each in both modes, at a quarter. `normal`: the mode in the quick suite; None if only the slow suite runs it.
SIGNAL, THREAD = (("signal", 25),), (("thread", 25),)
USER = {"as_user": True}
PROGRAMS = [
    # name, function, needs, normal, options
    ("typescript", typescript, missing("node", "tsc"), None, {}),
    ("npm", npm, missing("node", "npm"), None, {}),
    ("fio-psync", fio("psync", "4m-8m"), missing("fio"), SIGNAL, {}),
    ("fio-mmap", fio("mmap", "4m-8m"), missing("fio"), THREAD, {}),
    ("fio-libaio", fio("libaio", "512k-4m", "io_queue_init"), missing("fio"), SIGNAL, {}),
    ("fio-io_uring", fio("io_uring", "512k-4m", "Function not implemented"), missing("fio"), THREAD, {}),
    ("bubblewrap", sandboxed(*BWRAP), user_namespaces_missing("bwrap"), SIGNAL, USER),
    ("rootless", sandboxed(*UNSHARE), user_namespaces_missing("unshare"), THREAD, USER),
    ("git", git, missing("git"), THREAD, {}),
    ("c-build", c_build, missing("gcc", "make"), SIGNAL, {}),
    ("rust-build", rust_build, missing("cargo"), None, {}),
]
CPYTHON = [
    # name, normal, substrings of the names of tests to leave out
    ("fork1", None), ("mmap", THREAD), ("posix", None), ("os", None), ("thread", SIGNAL), ("signal", None),
    ("threading", None),
    # `test_user` has a child without root's rights, which --require refuses in thread mode (G23).
    ("subprocess", None, "test_user"),
]
# Interpreters that test themselves are hundreds of small processes: few pages are evicted.
PROGRAMS += [(f"cpython-{name}", cpython(f"test_{name}", *without), cpython_missing, normal, {"paged": False})
             for name, normal, *without in CPYTHON]

for _name, _function, _needs, _normal, _o in PROGRAMS:
    program(f"real-{_name}", needs=_needs, shares=(25,), normal=_normal, slow_only=_normal is None, timeout_s=150,
            **_o)(_function)
