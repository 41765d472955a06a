//! The bytes of every frame, as they were when its version was released. These files are never
//! rewritten: a difference breaks the protocol. (CANVAS_WRITE_GOLDEN=1 writes missing files, for
//! new frames.)

use crate::common;
use std::fmt::Write;
use std::path::PathBuf;

use canvas_wire::frame::{FromClient, FromDonor};

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let digits: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(text, "{}", digits.join(" ")).unwrap();
    }
    text
}

fn unhex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// Compares the bytes with the golden file.
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.hex"));
    if !path.exists() && std::env::var_os("CANVAS_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, hex(bytes)).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(text, hex(bytes), "{name} has changed");
    unhex(&text)
}

#[test]
fn frames_of_clients() {
    let mut names = Vec::new();
    common::client_frames(&mut |name, id, frame| {
        let mut out = [0; 4096];
        let len = frame.encode(id, &mut out).unwrap();
        let file = golden(name, &out[..len]);
        assert_eq!(FromClient::decode(&file), Ok((id, frame)), "{name}");
        names.push(name.to_owned());
    });
    assert_eq!(names.len(), 17);
}

#[test]
fn frames_of_donors() {
    let mut names = Vec::new();
    common::donor_frames(&mut |name, id, frame| {
        let mut out = [0; 4096];
        let len = frame.encode(id, &mut out).unwrap();
        let file = golden(name, &out[..len]);
        assert_eq!(FromDonor::decode(&file), Ok((id, frame)), "{name}");
        names.push(name.to_owned());
    });
    assert_eq!(names.len(), 10 + canvas_wire::error::ERROR_CODES.len() + 2);
}

/// A header written by hand, from the documentation and not from the code.
#[test]
fn a_read_by_hand() {
    let bytes = [
        &[4, 0, 0, 0][..],        // type, flags, code
        &16u32.to_le_bytes(),     // length of the body
        &77u64.to_le_bytes(),     // id
        &0xabcdu64.to_le_bytes(), // handle
        &8192u32.to_le_bytes(),   // offset
        &512u32.to_le_bytes(),    // length
    ]
    .concat();
    let (id, frame) = FromClient::decode(&bytes).unwrap();
    assert_eq!(id, 77);
    use canvas_wire::frame::{Range, Request};
    assert_eq!(
        frame,
        FromClient::Request(Request::Read {
            handle: 0xabcd,
            range: Range {
                offset: 8192,
                len: 512
            }
        })
    );
}
