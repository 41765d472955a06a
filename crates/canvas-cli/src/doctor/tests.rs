use super::*;
use crate::facts::Limits;

const ALL: u64 = feature::SIGBUS | feature::PAGEFAULT_FLAG_WP;

fn facts(user_mode_errno: i32, full_errno: i32, features: u64) -> Facts {
    Facts {
        kernel: "6.8".into(),
        glibc: Some("2.36".into()),
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

fn mode(wanted: ModeArg, f: &Facts) -> Result<Mode, String> {
    choose(wanted, f).map(|(mode, _)| mode)
}

const EPERM: i32 = Errno::EPERM as i32;
const EACCES: i32 = Errno::EACCES as i32;

#[test]
fn an_ordinary_user_gets_signal_mode() {
    let f = facts(0, EPERM, ALL);
    assert_eq!(mode(ModeArg::Auto, &f), Ok(Mode::Signal));
    assert_eq!(mode(ModeArg::Signal, &f), Ok(Mode::Signal));
    let refused = mode(ModeArg::Thread, &f).unwrap_err();
    assert!(
        refused.contains("CAP_SYS_PTRACE") && refused.contains("--mode signal"),
        "{refused}"
    );
}

#[test]
fn without_sigbus_a_privileged_user_gets_thread_mode() {
    let f = facts(0, 0, feature::MOVE);
    assert_eq!(mode(ModeArg::Auto, &f), Ok(Mode::Thread));
    assert!(mode(ModeArg::Signal, &f).unwrap_err().contains("SIGBUS"));
}

#[test]
fn the_device_is_enough_for_thread_mode() {
    let mut f = facts(EPERM, EPERM, ALL);
    f.probe.device_errno = 0;
    assert_eq!(mode(ModeArg::Auto, &f), Ok(Mode::Thread));
}

#[test]
fn nothing_works_in_a_default_container() {
    let f = facts(EPERM, EPERM, 0);
    let why = mode(ModeArg::Auto, &f).unwrap_err();
    assert!(
        why.contains("Docker") && why.contains("canvas doctor") && !why.contains('\n'),
        "{why}"
    );
    assert!(advice(&f).iter().any(|l| l.contains("seccomp=unconfined")));
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
    assert!(
        mode(ModeArg::Auto, &f)
            .unwrap_err()
            .contains("ulimit -v unlimited")
    );
}

#[test]
fn json_says_what_the_text_says() {
    let f = facts(0, EPERM, ALL);
    let choice = choose(ModeArg::Auto, &f);
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
fn every_json_field_is_documented() {
    let f = facts(0, 0, ALL);
    let v: serde_json::Value =
        serde_json::from_str(&to_json(&f, &choose(ModeArg::Auto, &f), &[])).unwrap();
    let doc = include_str!("../../../../docs/CLI.md");
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
                    "docs/CLI.md does not name {path}"
                );
            } else {
                walk(&path, v, doc);
            }
        }
    }
    walk("", &v, doc);
}
