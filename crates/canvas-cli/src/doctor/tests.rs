use super::*;
use canvas_runner::facts::Limits;
use canvas_shm::Mode;
use canvas_sys::uffd::Probe;

const ALL: u64 = feature::SIGBUS | feature::PAGEFAULT_FLAG_WP;

fn facts(user_mode_errno: i32, full_errno: i32, features: u64) -> Facts {
    Facts {
        kernel: "6.8".into(),
        glibc: Some("2.36".into()),
        page_hash: Some(Width::Bits512),
        probe: Probe {
            user_mode_errno,
            full_errno,
            device_errno: full_errno,
            features,
        },
        seccomp: Seccomp {
            trap: true,
            ..Seccomp::default()
        },
        max_map_count: Some(65_530),
        overcommit: Some(0),
        library_bytes: 1,
        ..Facts::default()
    }
}

fn mode(wanted: Option<Mode>, f: &Facts) -> Result<Mode, ModeError> {
    choose(wanted, f).map(|(mode, _)| mode)
}

/// The error if no mode works.
fn refusal(wanted: Option<Mode>, f: &Facts) -> String {
    mode(wanted, f).unwrap_err().to_string()
}

const EPERM: i32 = Errno::EPERM as i32;
const EACCES: i32 = Errno::EACCES as i32;

#[test]
fn nothing_works_under_a_runtimes_default_profile() {
    for (runtime, errno) in [
        (Runtime::Docker, EPERM),
        (Runtime::Podman, EPERM),
        (Runtime::Kubernetes, EPERM),
        // A profile with ENOSYS by default looks like a kernel without the call, which also lacks
        // the sysctl.
        (Runtime::Docker, Errno::ENOSYS as i32),
    ] {
        let mut f = facts(errno, errno, 0);
        f.seccomp.filtered = true;
        f.unprivileged_userfaultfd = Some(0);
        f.container = Some(Container {
            runtime,
            evidence: String::new(),
        });
        for wanted in [None, Some(Mode::Signal), Some(Mode::Thread)] {
            let why = refusal(wanted, &f);
            assert!(
                why.contains(runtime.default_profile()) && why.contains("canvas doctor"),
                "{why}"
            );
            assert!(
                !why.contains('\n') && !why.contains("CAP_SYS_PTRACE"),
                "{why}"
            );
        }
        let lines = advice(&f);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(
            lines[0].contains(runtime.allow()) && lines[0].contains(runtime.prepare()),
            "{lines:#?}"
        );
    }
}

#[test]
fn who_refuses_is_told_apart() {
    let mut f = facts(EPERM, EPERM, 0);
    f.unprivileged_userfaultfd = Some(0);
    assert!(refusal(None, &f).contains("security module"));
    assert!(advice(&f).iter().any(|l| l.contains("SELinux")));
    f.seccomp.filtered = true;
    assert!(refusal(None, &f).contains("a seccomp filter refuses userfaultfd, which"));
    assert!(advice(&f).iter().any(|l| l.contains("--containers")));
    let mut f = facts(Errno::ENOSYS as i32, Errno::ENOSYS as i32, 0);
    f.seccomp.filtered = true;
    assert!(refusal(None, &f).contains("CONFIG_USERFAULTFD"));
}

#[test]
fn other_refused_calls_are_told_with_what_is_lost() {
    let mut f = facts(0, 0, ALL);
    f.refused = vec![(Call::ProcessMadvise, Refusal::Error(EPERM))];
    let lines = advice(&f);
    assert!(
        lines.len() == 1 && lines[0].starts_with("process_madvise is refused (EPERM): a TLB flush"),
        "{lines:#?}"
    );
    // An old kernel does not count as a filter.
    f.refused = vec![(Call::FutexWaitv, Refusal::Error(Errno::ENOSYS as i32))];
    assert_eq!(advice(&f), Vec::<String>::new());
    f.seccomp.filtered = true;
    f.refused = vec![(Call::Ptrace, Refusal::Killed)];
    assert!(advice(&f)[0].contains("(SIGSYS)"));
    let text = to_text(&f, &chosen(&f), &[]);
    assert!(text.contains("ptrace (SIGSYS)"), "{text}");
    let json = to_json(&f, &chosen(&f), &[]);
    let v: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(v["refused"][0]["call"], "ptrace");
    assert_eq!(v["container"]["runtime"], serde_json::Value::Null);
}

#[test]
fn each_limit_has_its_advice() {
    assert_eq!(advice(&facts(0, 0, ALL)), Vec::<String>::new());
    let mut f = facts(0, EACCES, feature::SIGBUS);
    f.seccomp.trap = false;
    f.limits = Limits {
        address_space_bytes: Some(1 << 30),
        descriptors: Some(64),
        locked_bytes: None,
    };
    (f.max_map_count, f.overcommit, f.glibc, f.library_bytes) = (Some(1000), Some(2), None, 0);
    let lines = advice(&f);
    for word in [
        "write-protect",
        "thread mode",
        "SECCOMP",
        "ulimit -v",
        "ulimit -n",
        "max_map_count",
        "overcommit",
        "glibc",
        "CANVAS_SKIP_PRELOAD",
    ] {
        assert_eq!(
            lines.iter().filter(|l| l.contains(word)).count(),
            1,
            "{word} in {lines:#?}"
        );
    }
    assert!(refusal(None, &f).contains("ulimit -v unlimited"));
}

#[test]
fn json_says_what_the_text_says() {
    let f = facts(0, EPERM, ALL);
    let choice = chosen(&f);
    let v: serde_json::Value = serde_json::from_str(&to_json(&f, &choice, &advice(&f))).unwrap();
    assert_eq!(v["schema"], "canvas-doctor/1");
    assert_eq!(
        (v["ok"].as_bool(), v["mode"].as_str()),
        (Some(true), Some("signal"))
    );
    assert_eq!(v["userfaultfd"]["user_mode"]["ok"], true);
    assert_eq!(v["userfaultfd"]["full"]["error"], "EPERM");
    assert_eq!(
        v["userfaultfd"]["features"],
        serde_json::json!(["WP", "SIGBUS"])
    );
    assert_eq!(v["limits"]["address_space_bytes"], serde_json::Value::Null);
    let text = to_text(&f, &choice, &advice(&f));
    assert!(
        text.contains("signal: user-mode userfaultfd with SIGBUS works"),
        "{text}"
    );
    assert!(text.contains("no (EPERM)"), "{text}");
}

#[test]
fn rdma_is_told_and_is_advice_only_where_a_device_is() {
    let mut f = facts(0, 0, ALL);
    f.rdma.error = Some("RDMA needs libibverbs.so.1, which is not installed".into());
    let text = |f: &Facts| to_text(f, &chosen(f), &advice(f));
    assert!(
        text(&f).contains("RDMA                         no: RDMA needs libibverbs.so.1"),
        "{}",
        text(&f)
    );
    assert_eq!(advice(&f), Vec::<String>::new());
    f.rdma.kernel_devices = vec!["mlx5_0".into()];
    assert_eq!(
        advice(&f),
        ["this host has an RDMA device, but: RDMA needs libibverbs.so.1, which is not installed"]
    );
    f.rdma.error = None;
    f.rdma.ok = true;
    f.rdma.devices = vec!["mlx5_0".into(), "rxe0".into()];
    assert!(text(&f).contains("yes, mlx5_0, rxe0\n"), "{}", text(&f));
    assert_eq!(advice(&f), Vec::<String>::new());
    f.limits.locked_bytes = Some(64 << 10);
    assert!(advice(&f)[0].contains("ulimit -l"), "{:?}", advice(&f));
    assert_eq!(mode(None, &f), Ok(Mode::Signal), "RDMA is an extra");
}

#[test]
fn what_hashes_pages_is_told_and_its_absence_is_advice() {
    let mut f = facts(0, 0, ALL);
    let told = |f: &Facts| {
        let choice = chosen(f);
        let json = to_json(f, &choice, &[]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let text = to_text(f, &choice, &[]);
        let line = text.lines().find(|l| l.starts_with("page hash")).unwrap();
        let name = json["page_hash"].as_str().unwrap_or("null").to_owned();
        (line["page hash".len()..].trim().to_owned(), name)
    };
    for (by, text, name) in [
        (
            Some(Width::Bits512),
            "VPCLMULQDQ with AVX-512",
            "vpclmulqdq-avx512",
        ),
        (
            Some(Width::Bits256),
            "VPCLMULQDQ with AVX2",
            "vpclmulqdq-avx2",
        ),
        (Some(Width::Bits128), "PCLMULQDQ", "pclmulqdq"),
        (None, "no instruction for it", "null"),
    ] {
        f.page_hash = by;
        assert_eq!(told(&f), (text.to_owned(), name.to_owned()));
        let lines = advice(&f);
        assert_eq!(lines.len(), usize::from(by.is_none()), "{lines:?}");
        assert!(lines.iter().all(|l| l.contains("about 6 us longer")));
    }
    assert_eq!(mode(None, &f), Ok(Mode::Signal));
    // This processor's flags as the kernel reports them.
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has = flags.split_whitespace().any(|w| w == "pclmulqdq");
    assert_eq!(Facts::gather(Probe::default()).page_hash.is_some(), has);
}

#[test]
fn every_json_field_is_documented() {
    let f = facts(0, 0, ALL);
    let v: serde_json::Value = serde_json::from_str(&to_json(&f, &chosen(&f), &[])).unwrap();
    let doc = include_str!("../../../../docs/OPERATING.md");
    fn walk(prefix: &str, v: &serde_json::Value, doc: &str) {
        for (name, v) in v.as_object().into_iter().flatten() {
            let path = if prefix.is_empty() {
                name.clone()
            } else {
                format!("{prefix}.{name}")
            };
            if v.get("errno").is_some() || !v.is_object() {
                assert!(
                    doc.contains(&format!("`{path}`")),
                    "docs/OPERATING.md does not name {path}"
                );
            } else {
                walk(&path, v, doc);
            }
        }
    }
    walk("", &v, doc);
}
