//! Modules of the preload library: each may use the modules below it and none above. (Between
//! crates, cargo enforces that.)

use std::fs;
use std::path::{Path, PathBuf};

/// From the top: each module may use itself and those after it.
const ROOMS: [&str; 10] = [
    "capture",
    "process",
    "memory",
    "shared",
    "paging",
    "far_tier",
    "api",
    "tenant",
    "own_memory",
    "runtime",
];
/// Submodules that have an order as well, from the top. (Those of `shared` still use each other.)
const MODULES: [(&str, &[&str]); 8] = [
    (
        "capture",
        &["patch", "prepared", "stub", "hooks", "filters"],
    ),
    (
        "process",
        &[
            "namespaces",
            "clone",
            "procs",
            "listing",
            "exec",
            "limits",
            "tools",
            "users",
            "threads",
            "arrival",
            "sig",
            "actions",
            "frame",
            "altstack",
            "beliefs",
            "cancel",
        ],
    ),
    (
        "memory",
        &[
            "exports",
            "remap",
            "brk",
            "native",
            "mm",
            "advice",
            "admit",
            "lock",
            "wishes",
            "open_pages",
            "ranges",
            "args",
            "calls",
            "others",
            "lending",
            "uaccess",
            "pins",
        ],
    ),
    (
        "paging",
        &[
            "fault",
            "background",
            "nodes",
            "observers",
            "app_tier",
            "learn",
            "hints",
            "swapin",
            "trace",
            "native_swap",
            "devices",
            "vm",
            "accounting",
            "fork_accounting",
            "cache",
            "context",
            "discard",
            "regions",
            "touched",
            "freeze",
            "slow",
            "jvm",
        ],
    ),
    (
        "far_tier",
        &[
            "fork", "store", "tier", "ours", "lanes", "pairs", "pool", "extents", "keys",
        ],
    ),
    ("tenant", &["members", "smaps", "far_area", "life"]),
    ("own_memory", &["alloc", "areas", "writable", "own"]),
    (
        "runtime",
        &[
            "state", "thread", "fds", "lines", "report", "time", "upcalls", "call",
        ],
    ),
];
/// The macro at the library's root, which stands for `runtime::report`.
const ROOT: [&str; 1] = ["report"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../canvas-preload/src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The files of a module, including those in subdirectories.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// What is wrong with the paths in a file of `room`, as "line: why".
fn faults(room: &str, text: &str) -> Vec<String> {
    let place = |name: &str| ROOMS.iter().position(|r| *r == name);
    let own = place(room).unwrap();
    let mut wrong = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        if code.contains("super::super::") {
            wrong.push(format!("{}: a path by super leaves the room", n + 1));
        }
        for (at, _) in code.match_indices("crate::") {
            let rest = &code[at + "crate::".len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            match place(name) {
                Some(other) if other >= own => {}
                Some(_) => wrong.push(format!("{}: {room} uses {name}, which is above it", n + 1)),
                None if ROOT.contains(&name) => {}
                // A list of rooms in braces could not be checked here.
                None => wrong.push(format!("{}: name the room in each path: {code}", n + 1)),
            }
        }
    }
    wrong
}

#[test]
fn rooms_use_only_what_is_below_them() {
    let source = source();
    let mut all = Vec::new();
    for room in ROOMS {
        let mut found = Vec::new();
        files(&source.join(room), &mut found);
        assert!(found.len() > 1, "{room} has no files");
        for path in found {
            let name = path.strip_prefix(&source).unwrap().display().to_string();
            let wrong = faults(room, &read(&path));
            all.extend(wrong.into_iter().map(|w| format!("{name}:{w}")));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Submodules of `room` that a file of it names: by a path, or at the top level of a list in
/// braces.
fn uses(room: &str, text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|l| l.split("//").next().unwrap_or(l))
        .collect::<Vec<_>>()
        .join(" ");
    let path = format!("crate::{room}::");
    let word = |s: &str| -> String {
        let s = s.trim_start();
        s.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&path) {
        let rest = &code[at + path.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push(word(rest));
            continue;
        };
        let (mut depth, mut begins) = (1, 0);
        for (i, c) in list.char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if depth == 0 || depth == 1 && c == ',' {
                found.push(word(&list[begins..i]));
                begins = i + 1;
            }
            if depth == 0 {
                break;
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

#[test]
fn modules_of_a_room_use_only_those_below_them() {
    for (room, modules) in MODULES {
        let mut there: Vec<String> = fs::read_dir(source().join(room))
            .unwrap()
            .map(|f| {
                f.unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .filter(|name| name != "mod")
            .collect();
        there.sort_unstable();
        let mut listed = modules.to_vec();
        listed.sort_unstable();
        assert_eq!(there, listed, "{room}: each module has its place");
        for (own, name) in modules.iter().enumerate() {
            let text = read(&source().join(room).join(format!("{name}.rs")));
            for used in uses(room, &text) {
                let at = modules.iter().position(|m| *m == used);
                assert!(
                    at.is_some_and(|at| at >= own),
                    "{room}: {name} uses {used}, which is not below it"
                );
            }
        }
    }
}

#[test]
fn names_in_braces_are_read() {
    let text = "use crate::tenant::{life, far_area,\n far_area::{far, ring}, smaps::{self, X}, }; // crate::tenant::no\n\
                crate::tenant::members::wake(); crate::far_tier::pool::x()";
    assert_eq!(
        uses("tenant", text),
        ["life", "far_area", "far_area", "smaps", "members"]
    );
}

#[test]
fn there_are_no_other_rooms() {
    let text = read(&source().join("lib.rs"));
    let mut modules: Vec<_> = text
        .lines()
        .filter_map(|l| l.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    modules.sort_unstable();
    let mut rooms = ROOMS;
    rooms.sort_unstable();
    assert_eq!(modules, rooms);
}

#[test]
fn an_import_from_above_is_found() {
    assert_eq!(faults("paging", "use crate::memory::map;").len(), 1);
    assert_eq!(
        faults("runtime", "    crate::far_tier::spill::x()").len(),
        1
    );
    assert_eq!(
        faults("runtime", "use crate::{far_tier, runtime};").len(),
        1
    );
    assert_eq!(
        faults("runtime", "use super::super::far_tier::spill;").len(),
        1
    );
    assert!(faults("paging", "use crate::runtime::state; // crate::memory").is_empty());
    assert!(faults("memory", "crate::report!(\"\"); crate::shared::pages::x()").is_empty());
}
