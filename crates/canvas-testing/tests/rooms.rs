//! Order inside a crate, which cargo does not enforce: its folders use each other downwards only,
//! and no circle of files uses itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Crates with their folders from the top: each may use itself and those after it.
const CRATES: [(&str, &[&str]); 2] = [
    ("canvas-core", &["vm", "far", "swap", "pager"]),
    (
        "canvas-preload",
        &[
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
        ],
    ),
];
/// The macro at the library's root, which stands for `runtime::report`.
const ROOT: [&str; 1] = ["report"];

/// A file's module: the names after `crate`.
type Module = Vec<String>;
/// The modules that each module uses, but itself.
type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// Reads the files below a directory, which belongs to `module`: the code of each, without
/// comments and without the tests at its end.
fn read(dir: &Path, module: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        let mut own = module.clone();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if !matches!(name, "lib" | "mod") {
            own.push(name.to_owned());
        }
        if path.is_dir() {
            read(&path, &own, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.insert(own, code(&text));
        }
    }
}

fn code(text: &str) -> String {
    let lines = text.lines().take_while(|l| *l != "mod tests {");
    let code: Vec<_> = lines.map(|l| l.split("//").next().unwrap_or(l)).collect();
    code.join("\n")
}

fn source(name: &str) -> BTreeMap<Module, String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    let mut found = BTreeMap::new();
    read(&dir.join("src"), &Module::new(), &mut found);
    found
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths in some code; those of a list in braces are written out.
fn paths(mut code: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    while let Some(at) = code.find("::") {
        let before = &code[..at];
        let name = &before[before.trim_end_matches(is_of_word).len()..];
        code = path_on(&code[at + 2..], vec![name], &mut found);
    }
    found
}

/// Reads on after the `::` of a path; returns the code behind it.
fn path_on<'a>(code: &'a str, mut path: Vec<&'a str>, found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let Some(mut list) = code.strip_prefix('{') else {
        let rest = code.trim_start_matches(is_of_word);
        path.push(&code[..code.len() - rest.len()]);
        return match rest.strip_prefix("::") {
            Some(more) => path_on(more, path, found),
            None => {
                found.push(path);
                rest
            }
        };
    };
    loop {
        list = list.trim_start_matches(|c| !is_of_word(c) && c != '}');
        if list.is_empty() || list.starts_with('}') {
            return list.get(1..).unwrap_or(list);
        }
        list = path_on(list, path.clone(), found);
    }
}

/// The module that a path in `own` leads to, if it is one of the crate's.
fn target(own: &Module, path: &[&str], all: &BTreeMap<Module, String>) -> Option<Module> {
    let up = path.iter().take_while(|name| **name == "super").count();
    let mut at = match path[0] {
        "crate" if ROOT.contains(&path[1]) => return None,
        "crate" => Module::new(),
        "super" => own[..own.len().checked_sub(up)?].to_vec(),
        _ => own.clone(),
    };
    let names = &path[up.max(usize::from(path[0] == "crate"))..];
    let is_relative = at == *own;
    for (i, name) in names.iter().enumerate() {
        at.push((*name).to_owned());
        if !all.contains_key(&at) {
            at.pop();
            // Otherwise the name of another crate, of a type, or of what this file has imported.
            return (i > 0 || !is_relative).then_some(at);
        }
    }
    Some(at)
}

fn uses(all: &BTreeMap<Module, String>) -> Uses {
    let of = |own: &Module, code: &str| {
        let used = paths(code);
        let used = used.iter().filter_map(|path| target(own, path, all));
        used.filter(|used| used != own).collect()
    };
    let each = all.iter().map(|(own, code)| (own.clone(), of(own, code)));
    each.collect()
}

/// Uses of a folder above, or of the root, as "file uses file".
fn upward(uses: &Uses, folders: &[&str]) -> Vec<String> {
    let height = |m: &Module| folders.iter().position(|folder| *folder == m[0]);
    let mut wrong = Vec::new();
    for (own, used) in uses.iter().filter(|(own, _)| !own.is_empty()) {
        let is_up = |u: &&Module| u.is_empty() || height(u) < height(own);
        let name = |u: &Module| format!("{} uses {}", own.join("::"), u.join("::"));
        wrong.extend(used.iter().filter(is_up).map(name));
    }
    wrong
}

/// A circle of modules, if there is one.
fn circle(uses: &Uses) -> Option<Vec<&Module>> {
    let mut left: BTreeSet<&Module> = uses.keys().collect();
    loop {
        let is_used_below = |m: &&Module| uses[*m].iter().any(|used| left.contains(used));
        let next: BTreeSet<&Module> = left.iter().copied().filter(is_used_below).collect();
        if next.len() == left.len() {
            break;
        }
        left = next;
    }
    // Each of these uses another one of them.
    let mut way = vec![*left.first()?];
    loop {
        let next = uses[way[way.len() - 1]].iter().find(|m| left.contains(m))?;
        if let Some(begin) = way.iter().position(|m| *m == next) {
            return Some(way.split_off(begin));
        }
        way.push(next);
    }
}

#[test]
fn folders_use_only_those_below_them() {
    for (name, folders) in CRATES {
        let wrong = upward(&uses(&source(name)), folders);
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
    }
}

#[test]
fn files_use_each_other_in_no_circle() {
    for (name, _) in CRATES {
        let all = source(name);
        assert!(all.len() > 50, "{name} has {} files", all.len());
        let uses = uses(&all);
        let circle = circle(&uses).map(|c| c.iter().map(|m| m.join("::")).collect::<Vec<_>>());
        assert_eq!(
            circle, None,
            "{name}: each of these uses the next, the last the first"
        );
    }
}

#[test]
fn there_are_no_other_folders() {
    for (name, folders) in CRATES {
        let all = source(name);
        let found: BTreeSet<&str> = all
            .keys()
            .filter_map(|m| Some(m.first()?.as_str()))
            .collect();
        assert_eq!(found, folders.iter().copied().collect(), "{name}");
    }
}

/// The uses in these files.
fn uses_of(files: &[(&str, &str)]) -> Uses {
    let module = |path: &str| -> Module { path.split('/').map(str::to_owned).collect() };
    let files = files.iter().map(|(path, text)| (module(path), code(text)));
    uses(&files.collect())
}

#[test]
fn names_in_braces_are_read() {
    let text = "use crate::runtime::{areas, far_area,\n far_area::{far, ring}, state::{self, X}, }; // a::b\n\
                crate::runtime::time::now_ns(); x::y()";
    let base = [
        "areas",
        "far_area",
        "far_area::far",
        "far_area::ring",
        "state::self",
        "state::X",
    ];
    let base = base.map(|name| format!("crate::runtime::{name}"));
    let found: Vec<_> = paths(&code(text)).iter().map(|p| p.join("::")).collect();
    assert_eq!(found[..6], base);
    assert_eq!(found[6..], ["crate::runtime::time::now_ns", "x::y"]);
}

#[test]
fn a_use_of_a_folder_above_is_found() {
    let up = |text| {
        let uses = uses_of(&[("high", ""), ("high/a", ""), ("low", ""), ("low/b", text)]);
        upward(&uses, &["high", "low"])
    };
    assert_eq!(up("use crate::high::a::x;"), ["low::b uses high::a"]);
    assert_eq!(up("use crate::{high::a, low};"), ["low::b uses high::a"]);
    assert_eq!(up("    super::super::high::y()"), ["low::b uses high"]);
    assert!(
        up("use crate::low::c; // crate::high::a\nmod tests {\nuse crate::high::a;").is_empty()
    );
    assert!(up("crate::report!(\"\"); high::a::x()").is_empty());
}

#[test]
fn a_circle_is_found() {
    let is_one = |a, b| {
        circle(&uses_of(&[
            ("r", ""),
            ("r/a", a),
            ("r/a/c", ""),
            ("r/b", b),
        ]))
        .is_some()
    };
    assert!(is_one("use super::b::x;", "crate::r::a::y()"));
    assert!(is_one(
        "use crate::r::b;",
        "use super::a::c; use super::{x, a::{y}};"
    ));
    assert!(!is_one("use super::b; use c::x;", "use super::a::c;"));
    let parent = uses_of(&[
        ("r", ""),
        ("r/a", "pub use c::x;"),
        ("r/a/c", "use super::y;"),
    ]);
    assert_eq!(circle(&parent).map(|c| c.len()), Some(2));
}
