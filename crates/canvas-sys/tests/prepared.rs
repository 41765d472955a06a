//! Code that is prepared once: what is read from a file, and what is refused.
#![cfg(feature = "patch")]

use canvas_sys::patch::calls::NATIVE_BYTES;
use canvas_sys::patch::prepared::{
    AREA_BEFORE_TEXT, AREA_HEAD_BYTES, DIRECTORY_BYTES, Identity, Patch, Prepared, Source, append,
    directory,
};
use canvas_sys::patch::sites::{Code, TRAMPOLINE_BYTES, returning_at};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov eax, 9; syscall; cmp rax, -4096; ja +1`: libc's usual call.
const USUAL: [u8; 15] = [
    0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x77, 1,
];

/// A text with `USUAL` at some offsets, and `ret` everywhere else.
fn text(at: &[usize]) -> Vec<u8> {
    let mut code = vec![0xc3; 5000];
    for at in at {
        code[*at..at + USUAL.len()].copy_from_slice(&USUAL);
    }
    code
}

fn file(code: &[u8], never: &[usize]) -> Vec<u8> {
    let mut pages = code.to_vec();
    pages.resize(code.len().next_multiple_of(4096), 0xcc);
    let mut file = b"a library, not a whole number of pages long".to_vec();
    append(
        &mut file,
        &[Source {
            identity: Identity([1, 2, 3, 4, 5, 6, 7]),
            address: 0x26000,
            pages: &pages,
            text_bytes: code.len(),
            never,
        }],
    );
    file
}

fn read(file: &[u8]) -> Option<Vec<Prepared>> {
    let page = file.get(file.len().checked_sub(DIRECTORY_BYTES)?..)?;
    Some(directory(page, file.len())?.collect())
}

#[test]
fn what_was_prepared_is_the_code_with_jumps_in_it() {
    let code = text(&[100, 3000, 4096 - 6]);
    let file = file(&code, &[]);
    assert!(file.starts_with(b"a library"));
    let all = read(&file).unwrap();
    let [one] = &all[..] else { panic!("{all:?}") };
    assert_eq!(one.identity, Identity([1, 2, 3, 4, 5, 6, 7]));
    assert_eq!((one.address, one.text_bytes), (0x26000, code.len()));
    let patches: Vec<_> = Patch::read_all(&file[one.patches()]).collect();
    assert_eq!(patches.len(), 3);
    let patched = &file[one.code()];
    assert_eq!(patched.len(), 8192);
    assert_eq!(
        patched[code.len()..],
        [0xcc; 8192 - 5000],
        "what follows on the last page"
    );
    let mut undone = patched[..code.len()].to_vec();
    for (i, p) in patches.iter().enumerate() {
        assert_eq!(p.known, Some(9));
        assert!(p.fits(&code) && !p.fits(patched));
        // The jump leads to trampoline i of the area, at its fixed distance before the text.
        assert_eq!(patched[p.from], 0xe9);
        let rel = i32::from_le_bytes(patched[p.from + 1..p.from + 5].try_into().unwrap());
        let to = (p.from + 5) as i64 + i64::from(rel);
        let want = (AREA_HEAD_BYTES + i * TRAMPOLINE_BYTES) as i64 - AREA_BEFORE_TEXT as i64;
        assert_eq!(to, want);
        undone[p.from..p.from + 5].copy_from_slice(&p.before);
    }
    assert_eq!(undone, code);
}

#[test]
fn a_trampoline_goes_where_the_area_says_and_comes_back() {
    let code = text(&[100]);
    let file = file(&code, &[]);
    let one = read(&file).unwrap()[0];
    let t = &file[one.trampolines()];
    // lea rcx, [back]; jmp [area]; syscall; back: cmp rax, -4096; jmp back to the text.
    assert_eq!(&t[..3], [0x48, 0x8d, 0x0d]);
    assert_eq!(i32::from_le_bytes(t[3..7].try_into().unwrap()), 8);
    assert_eq!(&t[7..9], [0xff, 0x25]);
    let area = AREA_HEAD_BYTES as i32 + 13 + i32::from_le_bytes(t[9..13].try_into().unwrap());
    assert_eq!(area, 0, "the first bytes of the area");
    assert_eq!(NATIVE_BYTES, SYSCALL.len());
    assert_eq!(&t[13..15], &SYSCALL);
    assert_eq!(&t[15..21], &USUAL[7..13]);
    assert_eq!(t[21], 0xe9);
    let back = i64::from(i32::from_le_bytes(t[22..26].try_into().unwrap()));
    let from_text = AREA_HEAD_BYTES as i64 + 26 + back - AREA_BEFORE_TEXT as i64;
    assert_eq!(from_text, 100 + 13);
}

#[test]
fn some_calls_stay_as_they_are() {
    // In a function whose child returns on another stack; the return from a signal handler.
    let mut code = text(&[100, 1000]);
    code[2000..2007].copy_from_slice(&[0xb8, 15, 0, 0, 0, 0x0f, 0x05]);
    let one = read(&file(&code, &[990])).unwrap()[0];
    assert_eq!(one.patches().len() / 16, 1);
    // Except clone there, and the exit of its child.
    code[1000..1005].copy_from_slice(&[0xb8, 56, 0, 0, 0]);
    let one = read(&file(&code, &[990])).unwrap()[0];
    assert_eq!(one.patches().len() / 16, 2);
    code[1001] = 60;
    let one = read(&file(&code, &[990])).unwrap()[0];
    assert_eq!(one.patches().len() / 16, 2);
    // A jump right after the call, and no number before it: it cannot be patched.
    let mut code = vec![0xc3; 300];
    code[100..102].copy_from_slice(&SYSCALL);
    code[102..104].copy_from_slice(&[0xeb, 0xf0]);
    let mut left = Vec::new();
    let mut marks = vec![0; Code::marks_for(code.len())];
    Code::new(&code, &mut marks, &[]).each(|site| left.push(site.err()));
    assert_eq!(left, [Some(100)]);
    assert_eq!(read(&file(&code, &[])).unwrap(), [], "nothing to prepare");
}

#[test]
fn another_text_does_not_fit() {
    let code = text(&[100]);
    let file = file(&code, &[]);
    let one = read(&file).unwrap()[0];
    let patch = Patch::read_all(&file[one.patches()]).next().unwrap();
    for i in 0..5 {
        let mut other = code.clone();
        other[patch.from + i] ^= 1;
        assert!(!patch.fits(&other));
    }
    assert!(!patch.fits(&code[..patch.from + 4]), "cut short");
}

#[test]
fn a_damaged_directory_is_refused() {
    let good = file(&text(&[100, 3000]), &[]);
    assert!(read(&good).is_some());
    let directory_at = good.len() - DIRECTORY_BYTES;
    for at in directory_at..directory_at + 256 {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(read(&bad).is_none(), "byte {at}, bit {bit}");
        }
    }
    // What it names must lie in the file, whatever the checksum says.
    let page = &good[directory_at..];
    for bytes in [0, 1, 4096, good.len() - 3 * 4096] {
        assert!(directory(page, bytes).is_none(), "a file of {bytes} bytes");
    }
    assert!(directory(&page[..4095], good.len()).is_none());
    assert!(read(&vec![0; 8192]).is_none());
    assert!(read(b"too short").is_none());
}

/// From glibc 2.41's newlocale: the distance of `je` is 0x50f, whose bytes are those of `syscall`.
#[test]
fn bytes_within_another_instruction_are_no_call() {
    let mut code = vec![0x90; 600];
    let je_and_lea = [
        0x48, 0x85, 0xc0, 0x0f, 0x84, 0x0f, 0x05, 0, 0, 0x48, 0x8d, 0x80, 0xe8, 0, 0, 0,
    ];
    code[300..300 + je_and_lea.len()].copy_from_slice(&je_and_lea);
    // A call whose number is unknown, as in libc's syscall(2).
    code[400..405].copy_from_slice(&[0x0f, 0x05, 0x48, 0x89, 0xc3]);
    let mut marks = vec![0; Code::marks_for(code.len())];
    let mut found = Vec::new();
    Code::new(&code, &mut marks, &[]).each(|site| found.push(site.map(|new| new.from())));
    assert_eq!(found, [Err(305), Ok(400)]);
}

/// The end of glibc 2.41's __syscall_cancel_arch, with padding up to the next function: read, write, sendmsg and all
/// other calls that can be cancelled go through it.
#[test]
fn a_call_that_only_padding_follows_returns_from_its_trampoline() {
    let mut code = vec![0x90; 600];
    code[300..318].copy_from_slice(&[
        0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0,
    ]);
    // Here another function follows.
    code[400..408].copy_from_slice(&[0x0f, 0x05, 0xc3, 0x53, 0x48, 0x89, 0xfb, 0xc3]);
    // In a program with one thread __internal_syscall_cancel makes the call itself.
    code[500..516].copy_from_slice(&[
        0x48, 0x8b, 0x44, 0x24, 0x10, 0x0f, 0x05, 0x5b, 0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0,
    ]);
    let mut marks = vec![0; Code::marks_for(code.len())];
    let mut found = Vec::new();
    Code::new(&code, &mut marks, &[]).each(|site| found.push(site));
    let [Ok(returns), Err(400), Ok(pops)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(returns.from(), 305);
    let trampoline = returns.trampoline(&code, 0x10000, 0x20000, 0x30000);
    // `lea rcx`, `jmp [area]`, `syscall`, and the return.
    assert_eq!(trampoline.bytes()[7 + 6..][..3], [0x0f, 0x05, 0xc3]);
    // From the trampoline, the place in the library can be found.
    let mut whole = [0; TRAMPOLINE_BYTES];
    whole[..trampoline.bytes().len()].copy_from_slice(trampoline.bytes());
    assert_eq!(returning_at(&whole, 0x20000), Some(0x10000 + 305));
    whole[15] = 0x90;
    assert_eq!(returning_at(&whole, 0x20000), None);
    assert_eq!(pops.from(), 505);
    let trampoline = pops.trampoline(&code, 0x10000, 0x20000, 0x30000);
    assert_eq!(trampoline.bytes()[7 + 6..][..4], [0x0f, 0x05, 0x5b, 0xc3]);
}
