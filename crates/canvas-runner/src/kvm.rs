//! Detects programs that run virtual machines with KVM: signal mode cannot serve their guests'
//! processors, whose memory accesses fault inside the kernel.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::AtFlags;
use nix::unistd::{AccessFlags, faccessat};

const DEVICE: &str = "/dev/kvm";
/// Bytes of a program's file read at a time.
const STEP: usize = 1 << 20;

/// Whether this program probably uses KVM: the device exists, the program's file contains its name,
/// and, for qemu, which emulates by default, an argument requests it. Canvas's own file contains
/// the name, too (here), but never uses it.
pub fn is_used(program: &Path, command: &[OsString]) -> bool {
    asks(program, command) && may_open(Path::new(DEVICE)) && is_written_for_it(program)
}

fn is_written_for_it(program: &Path) -> bool {
    !is_ours(program)
        && File::open(program).is_ok_and(|mut file| names(&mut file, DEVICE.as_bytes()))
}

/// Whether it is the file that this process runs.
fn is_ours(program: &Path) -> bool {
    let place = |file: &Path| file.metadata().ok().map(|m| (m.dev(), m.ino()));
    place(Path::new("/proc/self/exe")).is_some_and(|ours| place(program) == Some(ours))
}

fn may_open(device: &Path) -> bool {
    let wanted = AccessFlags::R_OK | AccessFlags::W_OK;
    faccessat(nix::fcntl::AT_FDCWD, device, wanted, AtFlags::AT_EACCESS).is_ok()
}

/// Whether the command's arguments do not rule out the device.
fn asks(program: &Path, command: &[OsString]) -> bool {
    let has = |text: &[u8]| text.windows(3).any(|part| part == b"kvm");
    let name = program.file_name().unwrap_or_default().as_bytes();
    !name.starts_with(b"qemu-system-")
        || command
            .iter()
            .skip(1)
            .any(|word| has(&word.as_bytes().to_ascii_lowercase()))
}

/// Whether the file contains these bytes.
fn names(file: &mut impl Read, text: &[u8]) -> bool {
    // The end of each step is searched again together with the next one.
    let mut bytes = Vec::with_capacity(STEP + text.len());
    loop {
        let kept = bytes.len().min(text.len() - 1);
        bytes.drain(..bytes.len() - kept);
        match file.by_ref().take(STEP as u64).read_to_end(&mut bytes) {
            Ok(n) if n > 0 => {}
            _ => return false,
        }
        let mut rest = &bytes[..];
        // The first byte is rare, so searching it first is fast.
        while let Some(at) = rest.iter().position(|b| *b == text[0]) {
            if rest[at..].starts_with(text) {
                return true;
            }
            rest = &rest[at + 1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_over_the_edges_of_steps() {
        for before in [0, 1, STEP - 8, STEP - 7, STEP - 1, STEP, 2 * STEP - 3] {
            let mut bytes = vec![b'/'; before];
            bytes.extend_from_slice(b"/dev/kvm");
            assert!(names(&mut &bytes[..], b"/dev/kvm"), "{before}");
            bytes.pop();
            assert!(!names(&mut &bytes[..], b"/dev/kvm"), "{before}");
        }
        assert!(!names(&mut &b""[..], b"/dev/kvm"));
    }

    #[test]
    fn our_own_file_names_it_and_does_not_use_it() {
        let ours = std::env::current_exe().unwrap();
        let copy = std::env::temp_dir().join(format!("canvas-kvm-{}", std::process::id()));
        std::fs::copy(&ours, &copy).unwrap();
        let of_others = is_written_for_it(&copy);
        std::fs::remove_file(&copy).unwrap();
        assert!(of_others);
        assert!(!is_written_for_it(&ours));
    }

    #[test]
    fn qemu_is_asked_for_it() {
        let asks = |program: &str, words: &[&str]| {
            let command: Vec<_> = words.iter().map(OsString::from).collect();
            asks(Path::new(program), &command)
        };
        assert!(asks("/usr/bin/cloud-hypervisor", &["cloud-hypervisor"]));
        let qemu = "/usr/bin/qemu-system-x86_64";
        assert!(!asks(qemu, &["/home/kvm/qemu-system-x86_64", "-m", "2G"]));
        assert!(asks(qemu, &["qemu", "-enable-kvm"]));
        assert!(asks(qemu, &["qemu", "-machine", "q35,accel=KVM:tcg"]));
        assert!(!asks(qemu, &["qemu", "-accel", "tcg"]));
    }
}
