use super::*;

fn none(_: &str) -> Option<String> {
    None
}

/// The runtime detected with these files, this variable and these lines of /proc/self/cgroup.
fn seen(files: &[&str], variable: Option<(&str, &str)>, groups: &str) -> Option<Runtime> {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    fs::create_dir_all(root.path().join("run")).unwrap();
    fs::write(root.path().join("proc/self/cgroup"), groups).unwrap();
    for file in files {
        fs::write(root.path().join(file), "").unwrap();
    }
    let env = |name: &str| {
        let (key, value) = variable?;
        (key == name).then(|| value.to_owned())
    };
    Container::detect(root.path(), env).map(|c| c.runtime)
}

#[test]
fn containers_are_known_by_their_signs() {
    let session = "0::/user.slice/user-1000.slice/session-1.scope\n";
    for (files, variable, groups, runtime) in [
        (&[][..], None, session, None),
        // The service itself is not a container.
        (&[], None, "0::/system.slice/docker.service\n", None),
        (&[".dockerenv"], None, "0::/\n", Some(Runtime::Docker)),
        (
            &["run/.containerenv"],
            None,
            "0::/\n",
            Some(Runtime::Podman),
        ),
        (
            &["run/.containerenv"],
            Some(("KUBERNETES_SERVICE_HOST", "10.0.0.1")),
            "0::/\n",
            Some(Runtime::Kubernetes),
        ),
        (
            &[],
            None,
            "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope\n",
            Some(Runtime::Kubernetes),
        ),
        (
            &[],
            None,
            "0::/docker/0123456789ab\n",
            Some(Runtime::Docker),
        ),
        (
            &[],
            None,
            "0::/machine.slice/libpod-0123.scope/container\n",
            Some(Runtime::Podman),
        ),
        (
            &[],
            Some(("container", "lxc")),
            "0::/\n",
            Some(Runtime::Other),
        ),
        (
            &[".dockerenv"],
            Some(("container", "podman")),
            "0::/\n",
            Some(Runtime::Podman),
        ),
        (&[], Some(("container", "")), "0::/\n", None),
    ] {
        assert_eq!(
            seen(files, variable, groups),
            runtime,
            "{files:?} {variable:?} {groups}"
        );
    }
    assert_eq!(Container::detect(Path::new("/nonexistent"), none), None);
}

/// A profile's answer to a call with any arguments, in a container without the capabilities that
/// its rules mention, on a current kernel.
fn answer(profile: &Value, call: &str) -> Option<i32> {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let errno = |v: &Value| v.as_i64().map_or(libc_eperm(), |n| n as i32);
    for rule in list(&profile["syscalls"]) {
        let names = list(&rule["names"]).iter().any(|n| n == call);
        let asks = !list(&rule["includes"]["caps"]).is_empty();
        if names && !asks && list(&rule["args"]).is_empty() {
            let allowed = rule["action"] == "SCMP_ACT_ALLOW";
            return (!allowed).then(|| errno(&rule["errnoRet"]));
        }
    }
    Some(errno(&profile["defaultErrnoRet"]))
}

fn libc_eperm() -> i32 {
    Errno::EPERM as i32
}

#[test]
fn the_matrix_is_what_the_runtimes_profiles_say() {
    for (runtime, default) in [
        (
            Runtime::Docker,
            include_str!("../../../../tests/data/seccomp/docker.json"),
        ),
        (
            Runtime::Podman,
            include_str!("../../../../tests/data/seccomp/podman.json"),
        ),
        (
            Runtime::Kubernetes,
            include_str!("../../../../tests/data/seccomp/kubernetes.json"),
        ),
    ] {
        let default: Value = serde_json::from_str(default).unwrap();
        let ours: Value = serde_json::from_str(runtime.profile()).unwrap();
        for call in CALLS {
            let told = default_refusal(runtime, call).map(|e| e as i32);
            assert_eq!(answer(&default, name(call)), told, "{runtime:?} {call:?}");
            assert_eq!(answer(&ours, name(call)), None, "{runtime:?} {call:?}");
        }
    }
}

#[test]
fn the_matrix_names_each_call_and_the_line_that_allows_it() {
    let (text, json) = (matrix_text(), matrix_json());
    for call in CALLS {
        assert!(text.lines().any(|l| l.starts_with(name(call))), "{text}");
    }
    for (i, (runtime, _)) in MATRIX.into_iter().enumerate() {
        assert!(text.contains(runtime.allow()) && text.contains(runtime.prepare()));
        let profile = &json["profiles"][i];
        assert_eq!(profile["allow"], runtime.allow());
        assert_eq!(profile["refuses"][0]["call"], "userfaultfd");
    }
}

#[test]
fn the_document_has_the_matrix() {
    let document = include_str!("../../../../docs/CONTAINERS.md");
    for call in CALLS {
        let of = |runtime| {
            default_refusal(runtime, call).map_or_else(|| "yes".into(), |e| format!("{e:?}"))
        };
        let cells = [Runtime::Docker, Runtime::Podman, Runtime::Kubernetes].map(of);
        let row = format!("| `{}` | {} | yes |", name(call), cells.join(" | "));
        assert!(
            document.contains(&row),
            "docs/CONTAINERS.md has no row {row}"
        );
    }
    for (runtime, profile) in MATRIX {
        for text in [runtime.allow(), runtime.prepare(), profile] {
            let said = text.trim_end_matches(" ...");
            assert!(
                document.contains(said),
                "docs/CONTAINERS.md does not say {said}"
            );
        }
    }
}
