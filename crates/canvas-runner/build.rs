//! Builds the preload library and puts it where `src/preload.rs` includes it, so that one file has
//! to be installed.
//!
//! A separate cargo builds the library in its own target directory (the outer cargo holds the lock
//! on the usual one), always optimised, because it runs inside other programs. All profiles share
//! that directory, so the library is built once. With CANVAS_SKIP_PRELOAD=1, and under clippy,
//! nothing is built or embedded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const LIBRARY: &str = "libcanvas_preload.so";
/// Crates that the library is built from, besides its registry dependencies (Cargo.lock).
const CRATES: [&str; 7] = [
    "canvas-preload",
    "canvas-core",
    "canvas-direct",
    "canvas-rdma",
    "canvas-shm",
    "canvas-sys",
    "canvas-types",
];

fn main() {
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(var("OUT_DIR"));
    let root = manifest
        .ancestors()
        .nth(2)
        .unwrap_or(&manifest)
        .to_path_buf();
    println!("cargo::rerun-if-env-changed=CANVAS_SKIP_PRELOAD");
    println!("cargo::rerun-if-env-changed=RUSTC_WORKSPACE_WRAPPER");
    println!("cargo::rerun-if-changed=build.rs");
    for name in CRATES {
        for part in ["src", "Cargo.toml", "build.rs"] {
            let path = root.join("crates").join(name).join(part);
            if path.exists() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(file).display());
    }

    let target = out.join(LIBRARY);
    if skipped() {
        write(&target, &[]);
        return;
    }
    // OUT_DIR is TARGET/PROFILE/build/NAME/out.
    let built = build(
        &root,
        &out.ancestors().nth(4).unwrap_or(&out).join("preload"),
    );
    match fs::read(&built) {
        Ok(bytes) => write(&target, &bytes),
        Err(e) => panic!(
            "the preload library {} cannot be read: {e}",
            built.display()
        ),
    }
}

fn var(name: &str) -> String {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Checks do not need the library, which takes long to build.
fn skipped() -> bool {
    let asked = env::var("CANVAS_SKIP_PRELOAD").is_ok_and(|v| v != "0");
    asked || env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|w| w.contains("clippy"))
}

/// Builds the library and returns its path.
fn build(root: &Path, target_dir: &Path) -> PathBuf {
    let mut cargo = Command::new(var("CARGO"));
    cargo.current_dir(root);
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "canvas-preload",
    ]);
    cargo.arg("--target-dir").arg(target_dir);
    let (host, target) = (var("HOST"), var("TARGET"));
    let mut dir = target_dir.to_path_buf();
    if host != target {
        cargo.args(["--target", &target]);
        dir.push(&target);
    }
    // Variables that the outer cargo sets for its own compilers.
    for (name, _) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let ours =
            name.starts_with("CARGO_") || name.starts_with("RUSTC") || name.starts_with("DEP_");
        let keep = name == "CARGO_HOME"
            || name.starts_with("CARGO_NET_")
            || name.starts_with("CARGO_REGISTR");
        if ours && !keep
            || [
                "OPT_LEVEL",
                "DEBUG",
                "PROFILE",
                "NUM_JOBS",
                "OUT_DIR",
                "RUSTFLAGS",
            ]
            .contains(&name)
        {
            cargo.env_remove(name);
        }
    }
    // Each run writes the library to a memory file: profilers need symbols, but line tables are
    // only weight.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    match cargo.status() {
        Ok(status) if status.success() => dir.join("release").join(LIBRARY),
        Ok(status) => {
            panic!("building the preload library failed ({status}); its errors are above")
        }
        Err(e) => panic!("cargo cannot be run to build the preload library: {e}"),
    }
}

fn write(path: &Path, bytes: &[u8]) {
    if let Err(e) = fs::write(path, bytes) {
        panic!("{} cannot be written: {e}", path.display());
    }
}
