//! Linker flags of the command.

fn main() {
    // Libraries with threads and dlopen(3) before glibc 2.34 (canvas_sys::compat).
    for flag in [
        "-Wl,--push-state,--no-as-needed",
        "-l:libpthread.so.0",
        "-l:libdl.so.2",
        "-Wl,--pop-state",
    ] {
        println!("cargo:rustc-link-arg-bins={flag}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
