//! Delay of a link: an eBPF program at a device's egress, which holds back each packet with data. `tc` loads
//! it from an object file that this module generates: the program has a dozen instructions and needs no
//! compiler.

use std::io::Write;
use std::os::fd::AsRawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::error::{NetError, ToolError};
use super::tool;
use crate::link::Delay;

/// Section that `tc` loads the program from.
const SECTION: &str = "classifier";
/// Limit on the polls of the clock, after which a packet goes: the verifier rejects unbounded loops. A poll
/// takes some 20 ns, so the limit exceeds the longest delay.
const LOOKS_MAX: i32 = 8000;

// The instructions used (linux/bpf.h, linux/bpf_common.h).
const LOAD_WORD: u8 = 0x61;
const LOAD_PACKET_BYTE: u8 = 0x30;
const MOVE: u8 = 0xbf;
const MOVE_NUMBER: u8 = 0xb7;
const ADD: u8 = 0x07;
const SUBTRACT: u8 = 0x17;
const SHIFT_RIGHT: u8 = 0x77;
const SHIFT_LEFT: u8 = 0x67;
const JUMP_IF_NO_LESS: u8 = 0x3d;
const JUMP_IF_NOT: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The helper that returns the time (bpf_ktime_get_ns).
const CLOCK: i32 = 5;
/// Continue with the next filter, or send (TC_ACT_UNSPEC).
const GO_ON: i32 = -1;

/// Ethernet and IPv4 without options.
const HEADERS: i32 = 14 + 20;
/// Offset of the byte in a TCP segment whose upper half is the header's length in words.
const TCP_WORDS: i32 = HEADERS + 12;

/// An instruction: code, destination register, source register, jump offset, immediate.
fn instruction(code: u8, to: u8, from: u8, jump: i16, number: i32) -> [u8; 8] {
    let mut bytes = [code, to | from << 4, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&jump.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// The program: TCP segments with data wait for the delay; others go at once. A pure acknowledgement is sent
/// while the answer's data is on its way to a reader, who would otherwise wait for a third trip.
fn program(delay: Delay) -> Vec<u8> {
    let delay_ns = i32::try_from(delay.ns).unwrap_or(i32::MAX);
    [
        // Packet loads need the context in register 6.
        instruction(MOVE, 6, 1, 0, 0),
        instruction(LOAD_WORD, 7, 6, 0, 0),
        instruction(LOAD_PACKET_BYTE, 0, 0, 0, TCP_WORDS),
        instruction(SHIFT_RIGHT, 0, 0, 0, 4),
        instruction(SHIFT_LEFT, 0, 0, 0, 2),
        instruction(ADD, 0, 0, 0, HEADERS),
        // No data after the headers: jump to the end.
        instruction(JUMP_IF_NO_LESS, 0, 7, 8, 0),
        instruction(CALL, 0, 0, 0, CLOCK),
        instruction(MOVE, 6, 0, 0, 0),
        instruction(ADD, 6, 0, 0, delay_ns),
        instruction(MOVE_NUMBER, 7, 0, 0, LOOKS_MAX),
        // The loop.
        instruction(CALL, 0, 0, 0, CLOCK),
        instruction(JUMP_IF_NO_LESS, 0, 6, 2, 0),
        instruction(SUBTRACT, 7, 0, 0, 1),
        instruction(JUMP_IF_NOT, 7, 0, -4, 0),
        // The end.
        instruction(MOVE_NUMBER, 0, 0, 0, GO_ON),
        instruction(EXIT, 0, 0, 0, 0),
    ]
    .concat()
}

/// A section: name, type, flags, linked section, info, size of an entry, bytes.
type Section<'a> = (&'a str, u32, u64, u32, u32, u64, &'a [u8]);

const HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

/// The program as a relocatable object file (ELF) with one function.
fn object(code: &[u8]) -> Vec<u8> {
    const NAMES: &str = "\0classifier\0license\0.symtab\0.strtab\0delay\0";
    const NAMES_AT: u16 = 4;
    let name = |wanted: &str| {
        let at = NAMES.find(&format!("\0{wanted}\0")).unwrap_or(0);
        at as u32 + 1
    };
    // The null symbol, and a global function in section 1.
    let mut symbols = vec![0; SYMBOL_BYTES];
    symbols.extend(name("delay").to_ne_bytes());
    symbols.extend([0x12, 0]);
    symbols.extend(1u16.to_ne_bytes());
    symbols.extend(0u64.to_ne_bytes());
    symbols.extend((code.len() as u64).to_ne_bytes());
    let sections: [Section; 4] = [
        (SECTION, 1, 6, 0, 0, 0, code),
        ("license", 1, 3, 0, 0, 0, b"GPL\0"),
        (".symtab", 2, 0, 4, 1, SYMBOL_BYTES as u64, &symbols),
        (".strtab", 3, 0, 0, 0, 0, NAMES.as_bytes()),
    ];
    let mut body = Vec::new();
    let mut table = vec![0; HEADER_BYTES];
    for (text, kind, flags, link, number, entry, bytes) in sections {
        body.resize(body.len().next_multiple_of(8), 0);
        table.extend(name(text).to_ne_bytes());
        table.extend(kind.to_ne_bytes());
        table.extend(flags.to_ne_bytes());
        table.extend(0u64.to_ne_bytes());
        table.extend(((HEADER_BYTES + body.len()) as u64).to_ne_bytes());
        table.extend((bytes.len() as u64).to_ne_bytes());
        table.extend(link.to_ne_bytes());
        table.extend(number.to_ne_bytes());
        table.extend(8u64.to_ne_bytes());
        table.extend(entry.to_ne_bytes());
        body.extend(bytes);
    }
    body.resize(body.len().next_multiple_of(8), 0);
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, order, 1];
    file.resize(16, 0);
    // Relocatable, machine EM_BPF, version 1.
    file.extend([1u16, 247].map(u16::to_ne_bytes).concat());
    file.extend(1u32.to_ne_bytes());
    let sections_at = (HEADER_BYTES + body.len()) as u64;
    file.extend([0, 0, sections_at].map(u64::to_ne_bytes).concat());
    file.extend(0u32.to_ne_bytes());
    let sizes = [HEADER_BYTES as u16, 0, 0, HEADER_BYTES as u16, 5, NAMES_AT];
    file.extend(sizes.map(u16::to_ne_bytes).concat());
    file.extend(body);
    file.extend(table);
    file
}

/// Delays all packets with data that leave through `device`, in the network namespace that the command
/// `prefix` enters. The delay ends with the device.
pub(super) fn put(prefix: &[String], device: &str, delay: Delay) -> Result<(), NetError> {
    // In memory, so that no file is left behind.
    let file = memfd_create("delay.o", MFdFlags::MFD_CLOEXEC)
        .map(std::fs::File::from)
        .map_err(|e| NetError::Object(e.into()))?;
    (&file)
        .write_all(&object(&program(delay)))
        .map_err(NetError::Object)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    // `tc` mounts a bpf file system and leaves it mounted; a mount namespace of its own discards it.
    const SCRIPT: &str = r#"tc qdisc add dev "$0" clsact &&
        exec tc filter add dev "$0" egress bpf da object-file "$1" section "$2""#;
    let own = [
        "unshare", "--mount", "--", "sh", "-c", SCRIPT, device, &path, SECTION,
    ];
    match tool::run_behind(prefix, &own) {
        Ok(_) => Ok(()),
        Err(ToolError::Failed { said, .. }) => Err(NetError::NoDelay(said)),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jumps stay within the program, and the backward jump is the loop's.
    #[test]
    fn jumps_stay_within_the_program() {
        let code = program(Delay::ns(25_000));
        let count = code.len() / 8;
        let mut back = 0;
        for (at, word) in code.chunks(8).enumerate() {
            let jump = i16::from_ne_bytes([word[2], word[3]]);
            let to = at as i64 + 1 + i64::from(jump);
            assert!((0..count as i64).contains(&to) || word[0] == EXIT, "{at}");
            if jump < 0 {
                back += 1;
                let target = &code[to as usize * 8..][..8];
                assert_eq!(target, instruction(CALL, 0, 0, 0, CLOCK));
            }
        }
        assert_eq!(back, 1);
        // A packet without data jumps over the loop.
        let end = &code[(6 + 1 + 8) * 8..][..8];
        assert_eq!(end, instruction(MOVE_NUMBER, 0, 0, 0, GO_ON));
        assert_eq!(code[9 * 8 + 4..10 * 8], 25_000i32.to_ne_bytes());
    }

    /// The parts of the file are where its headers say.
    #[test]
    fn an_object_file_has_its_program_where_it_says() {
        let code = program(Delay::ns(12_500));
        let file = object(&code);
        let word = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let table = word(40);
        assert_eq!(file.len(), table + 5 * HEADER_BYTES);
        let section = |n: usize| {
            let at = table + n * HEADER_BYTES;
            &file[word(at + 24)..][..word(at + 32)]
        };
        assert_eq!(section(1), code);
        assert_eq!(section(2), b"GPL\0");
        assert_eq!(section(3).len(), 2 * SYMBOL_BYTES);
        let at = table + HEADER_BYTES;
        let name = u32::from_ne_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        assert!(section(4)[name..].starts_with(b"classifier\0"));
    }
}
