//! Sizes of the kernel's structures, compared with the headers of this system.

use canvas_sys::uapi::ALL;
use std::io::Write;
use std::process::{Command, Stdio};

/// Compiles assertions over all structures of some headers; returns the compiler's errors about wrong ones.
fn wrong_sizes(is_libcs: bool) -> String {
    let libcs = ["sys/socket.h", "utime.h"];
    let mut source = String::from("#define _GNU_SOURCE\n");
    for (header, spelling, bytes) in ALL {
        if libcs.contains(header) == is_libcs {
            source += &format!(
                "#include <{header}>\n_Static_assert(sizeof({spelling}) == {bytes}, \"{spelling}\");\n"
            );
        }
    }
    let compiler = Command::new("cc")
        .args(["-x", "c", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut compiler = compiler.expect("a C compiler, which building canvas takes anyway");
    let mut stdin = compiler.stdin.take().unwrap();
    stdin.write_all(source.as_bytes()).unwrap();
    drop(stdin);
    let done = compiler.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.success(), !said.contains("error"), "{said}");
    said
}

#[test]
fn sizes_are_those_of_the_kernels_headers() {
    // One after the other: the C library defines some of these structures itself, differently.
    for is_libcs in [false, true] {
        let said = wrong_sizes(is_libcs);
        assert!(!said.contains("error"), "{said}");
    }
}
