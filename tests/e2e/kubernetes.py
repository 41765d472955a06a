"""The manifests of etc/kubernetes: they are valid, and their containers work together."""

import json
import os
import re
import subprocess
import time
import urllib.request

from e2e.containers import HELPER, no_library
from lib import canvas
from lib.harness import ROOT, TESTS, Failure, Skip, check
from lib.venv import python_with

MANIFESTS = os.path.join(ROOT, "etc", "kubernetes")
# The newest version for which the validator has schemas.
VERSION = "1.37"
# Replaces the node's address: an unused one on the loopback device.
NODE = "127.0.71.1"


def no_validator():
    return None if python_with("kubernetes") else "kubernetes-validate cannot be installed from PyPI"


def validate(*files):
    script = os.path.join(TESTS, "py", "manifests.py")
    return subprocess.run([python_with("kubernetes"), script, VERSION, *files], capture_output=True, text=True)


def manifests():
    names = sorted(os.listdir(MANIFESTS))
    p = validate(*(os.path.join(MANIFESTS, n) for n in names))
    if p.returncode:
        raise Failure(p.stderr)
    return names, json.loads(p.stdout)


def one(all_, kind, name):
    return next(d for d in all_ if d["kind"] == kind and d["metadata"]["name"] == name)


def container(document):
    spec = document["spec"]
    return spec.get("template", document)["spec"]["containers"][0]


@check("kubernetes", modes=("signal",), timeout_s=120, needs=no_validator)
def valid(r):
    """The manifests are valid by the API's schemas, and agree with each other, the code and the image."""
    names, all_ = manifests()
    listed = next(d for d in all_ if d["kind"] == "Kustomization")
    r.same(sorted(listed["resources"] + ["kustomization.yaml"]), names, "files that kustomization.yaml lists")
    # Checks the validator itself: it must reject an unknown field.
    with open(os.path.join(MANIFESTS, "pod.yaml")) as f:
        wrong = r.path("wrong.yaml")
        with open(wrong, "w") as out:
            out.write(f.read().replace("seccompProfile:", "seccompProfil:", 1))
    p = validate(wrong)
    r.require(p.returncode and "seccompProfil" in p.stderr, f"a wrong field was not found: {p}")
    donor, agent = one(all_, "DaemonSet", "canvas-donor"), one(all_, "DaemonSet", "canvas-agent")
    pod = one(all_, "Pod", "canvas-example")
    for document in (donor, agent, pod):
        c = container(document)
        profile = (c["securityContext"].get("seccompProfile")
                   or document["spec"]["securityContext"]["seccompProfile"])
        # Only containers that manage memory need canvas's profile.
        expected = {"type": "Localhost", "localhostProfile": "canvas.json"} if document is pod else {"type": "RuntimeDefault"}
        r.same(profile, expected, f"{document['metadata']['name']}'s profile")
        r.require(not c["securityContext"]["allowPrivilegeEscalation"], "rights may grow")
        r.same(c["image"], listed["images"][0]["name"], "the image")
        mounts = {m["name"] for m in c["volumeMounts"]}
        volumes = {v["name"] for v in (document["spec"].get("template") or document)["spec"]["volumes"]}
        r.same(mounts, volumes, f"{document['metadata']['name']}'s volumes")
    config = one(all_, "ConfigMap", "canvas-config")["data"]["canvas.toml"]
    memory = int(re.search(r'memory = "(\d+)G"', config)[1])
    r.same(container(donor)["resources"]["limits"]["memory"], f"{memory * 1024 + 256}Mi", "the donor's limit")
    r.write("canvas.toml", config)
    if r.managed:
        p = subprocess.run([r.session.canvas, "config", "check", r.path("canvas.toml")], capture_output=True, text=True)
        r.same((p.returncode, p.stdout), (0, "ok\n"), f"canvas config check ({p.stderr})")


def no_cluster():
    if os.getuid() != 0:
        return "needs root, as the containers have it"
    return no_validator() or no_library()


class Cluster:
    """The containers of the manifests as processes of this host, each under its seccomp profile."""

    def __init__(self, r):
        self.r, self.children = r, []
        _, self.all = manifests()
        # Paths of the containers, and names that only a cluster resolves.
        self.places = {"/etc/canvas/secret": r.path("secret"), "/run/canvas": r.path("run"),
                       "/var/lib/canvas": r.path("far"), "/etc/canvas/canvas.toml": r.path("canvas.toml"),
                       "canvas-donors.canvas.svc": NODE, "$(HOST_IP)": NODE, "$(POD_IP)": NODE,
                       '"0.0.0.0:': f'"{NODE}:'}
        for name in ("run", "far", "secret"):
            os.mkdir(r.path(name))
        # A secret's volume consists of links into a hidden directory.
        subprocess.run([r.session.canvas, "keygen", r.path("secret/.data")], check=True, capture_output=True)
        os.symlink(".data", r.path("secret/key"))
        config = one(self.all, "ConfigMap", "canvas-config")["data"]["canvas.toml"]
        r.write("canvas.toml", self.here(config).replace('memory = "8G"', 'memory = "1G"').replace(
            'reserve = "4G"', 'reserve = "1G"'))

    def here(self, text):
        for name, place in self.places.items():
            text = text.replace(name, place)
        return text

    def start(self, document, profile):
        c = container(document)
        argv = [self.r.session.canvas, *(self.here(a) for a in c["args"])]
        argv = [self.r.session.canvas if a == "canvas" else a for a in argv]
        out = self.r.path(document["metadata"]["name"])
        # A container has its own process namespace, and only those of root's capabilities that it adds.
        kept = ",".join(f"+{name.lower()}" for name in c["securityContext"]["capabilities"].get("add", []))
        caps = "-all" + ("," + kept if kept else "")
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "python3", HELPER, profile, "setpriv",
                "--no-new-privs", "--bounding-set", caps, "--inh-caps", caps, *argv]
        env = {**self.r._environment({}), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        with open(out + ".out", "w") as o, open(out + ".err", "w") as e:
            child = subprocess.Popen(argv, stdout=o, stderr=e, stdin=subprocess.DEVNULL, env=env, cwd=self.r.dir)
        self.children.append(child)
        return child, out

    def end(self):
        for child in reversed(self.children):
            child.kill()
            child.wait()

    def wait(self, what, ready, child, out):
        for _ in range(300):
            if ready():
                return
            if child.poll() is not None:
                break
            time.sleep(0.1)
        with open(out + ".err") as f:
            raise Failure(f"{what} is not ready (ended: {child.poll()}): {f.read()[-800:]}")


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.read().decode() if answer.status == 200 else None
    except OSError:
        return None


@check("kubernetes-containers", modes=("signal",), timeout_s=180, needs=no_cluster)
def works(r):
    """The containers of the manifests work under their profiles: donor, agent, and a program whose pages go to
    both."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    cluster = Cluster(r)
    try:
        default = os.path.join(TESTS, "data", "seccomp", "kubernetes.json")
        ours = os.path.join(ROOT, "etc", "seccomp", "kubernetes.json")
        donor = one(cluster.all, "DaemonSet", "canvas-donor")
        port = next(p["containerPort"] for p in container(donor)["ports"] if p["name"] == "metrics")
        metrics = f"http://{NODE}:{port}{container(donor)['livenessProbe']['httpGet']['path']}"
        child, out = cluster.start(donor, default)
        cluster.wait("the donor", lambda: answers(metrics), child, out)
        agent = one(cluster.all, "DaemonSet", "canvas-agent")
        child, out = cluster.start(agent, default)
        probe = [cluster.here(a) for a in container(agent)["readinessProbe"]["exec"]["command"]]
        cluster.wait("the agent", lambda: subprocess.run(probe).returncode == 0, child, out)
        # The program runs for a shorter time with less memory than in the manifest; all else is unchanged.
        pod = one(cluster.all, "Pod", "canvas-example")
        c = container(pod)
        stats = r.path("stats.json")
        small = {"--local=256M": "--local=32M", "--pool=128M": "--pool=8M", "512": "64", "60": "8"}
        c["args"] = [small.get(a, a) for a in c["args"]]
        c["args"][c["args"].index("--"):0] = [f"--stats={stats}"]
        config = one(cluster.all, "ConfigMap", "canvas-config")["data"]["canvas.toml"]
        r.require(f"[tenant.{[a for a in c['args'] if a.startswith('--tenant=')][0][9:]}]" in config, "no such tenant")
        child, out = cluster.start(pod, ours)
        port = c["ports"][0]["containerPort"]
        cluster.wait("the program", lambda: answers(f"http://{NODE}:{port}/metrics"), child, out)
        # The startup probe runs in the container, as the kubelet would run it.
        with open(f"/proc/{child.pid}/task/{child.pid}/children") as f:
            inside = f.read().split()[0]
        r.same(c["startupProbe"]["exec"]["command"], ["canvas", "status"], "the probe")
        status = ["nsenter", "--target", inside, "--pid", "--mount", r.session.canvas, "status"]

        def started():
            probe = subprocess.run(status, capture_output=True, text=True, env=r._environment({}))
            return probe.returncode == 0 and "example" in probe.stdout

        # Repeated, as by the kubelet: a new slab gets its second copy a moment later.
        cluster.wait("the startup probe", started, child, out)
        child.wait(timeout=90)
        with open(out + ".err") as f:
            r.same((child.returncode, f.read()), (0, ""), "the program")
        seen = canvas.load_stats(stats)
        r.require(canvas.find(seen, "pages_out") > 0, "nothing was paged out")
        lent = re.search(r"^canvas_serve_writes_total\S* (\d+)", answers(metrics), re.M)
        r.require(lent and int(lent[1]) > 0, f"the donor got nothing: {lent and lent[0]}")
    finally:
        cluster.end()
