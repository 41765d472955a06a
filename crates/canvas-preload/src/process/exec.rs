//! The program's exec: the new image is managed, too, if possible.

use canvas_sys::gate::raw;
use canvas_sys::{Errno, file, proc, signal};
use canvas_types::elf::{self, Bytes, INTERPRETERS_MAX, Image, PATH_BYTES};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::memory::{args, uaccess};
use crate::paging::trace;
use crate::process::{actions, beliefs, limits, threads, users};
use crate::report;
use crate::runtime::state;
use crate::shared::members;

state! {
    /// What a new image needs to be managed.
    static EXEC: Exec {
        /// Canvas's variables for the environment: "NAME=value" strings, set at start-up.
        vars: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3],
        /// The process with a filter that would kill a managed program at its start: its number, or [`ALL`] for this
        /// process and all that it forks. (A vfork(2) child shares this memory, but not its filters.)
        killed: AtomicU32 = AtomicU32::new(0),
    }
}
const ALL: u32 = u32::MAX;

/// Remembers a "NAME=value" string for exec'd programs.
pub fn remember_var(i: usize, text: &'static core::ffi::CStr) {
    EXEC.vars[i].store(text.as_ptr() as usize, Ordering::Relaxed);
}

/// Records that a filter of this process kills callers of a system call that canvas makes at its start.
pub fn forbid() {
    let whom = match state::PROCESS.is_vfork_child() {
        true => proc::pid(),
        false => ALL,
    };
    EXEC.killed.store(whom, Ordering::Relaxed);
}

/// Maximum entries of an environment that is rebuilt on the stack.
const ENV_MAX: usize = 1000;

/// Whether this is the number of an open descriptor.
fn names_open_fd(text: &[u8]) -> bool {
    let number = core::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
    // SAFETY: this command takes no address.
    number.is_some_and(|fd: i32| unsafe {
        canvas_sys::sys2(libc::SYS_fcntl, fd as usize, libc::F_GETFD as usize).is_ok()
    })
}

/// Bytes of the longest `LD_PRELOAD` that canvas's library is added to.
const PRELOAD_MAX: usize = 4096;

/// Space for the environment of a new image.
struct Room {
    entries: [usize; ENV_MAX + 4],
    preload: [u8; PRELOAD_MAX],
}

/// What becomes of a variable in the environment of a new image.
enum Becomes {
    /// It is unchanged.
    Same,
    /// It is replaced by the string in the room.
    Written,
    Nothing,
}

/// `LD_PRELOAD` for a new image: `theirs`, with canvas's library in front of it or without it. A value that does not
/// fit the room is left unchanged.
fn preload(room: &mut [u8; PRELOAD_MAX], theirs: &[u8], ours: &[u8], with: bool) -> Becomes {
    let mut len = 0;
    let mut fits = true;
    let mut write = |text: &[u8]| {
        match room.get_mut(len..len + text.len()) {
            Some(to) => to.copy_from_slice(text),
            None => fits = false,
        }
        len += text.len();
    };
    write(PRELOAD);
    let separated = theirs.split(|b| matches!(b, b':' | b' '));
    let others = separated.filter(|library| !library.is_empty() && *library != ours);
    let mut any = false;
    for library in with.then_some(ours).into_iter().chain(others) {
        if any {
            write(b":");
        }
        write(library);
        any = true;
    }
    write(b"\0");
    match (any, fits) {
        (false, _) => Becomes::Nothing,
        (true, true) => Becomes::Written,
        (true, false) => Becomes::Same,
    }
}

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The environment at `envp` as the new image gets it, in `room` where it differs: with canvas's variables, or without
/// them if the library must stay out. Other contents of `LD_PRELOAD` stay, after canvas's library.
///
/// # Safety
///
/// `envp` must be what the program passed to execve: null, or an array of C strings that ends with null, which nobody
/// changes meanwhile.
unsafe fn with_our_vars(envp: usize, room: &mut Room, with: bool) -> Result<usize, Errno> {
    let ours: [usize; 3] = [0, 1, 2].map(|i| EXEC.vars[i].load(Ordering::Relaxed));
    // SAFETY: an address other than 0 is of a C string that lives for ever (`remember_var`).
    let text_of =
        |our: usize| (our != 0).then(|| unsafe { CStr::from_ptr(our as *const c_char) }.to_bytes());
    let library = text_of(ours[2]).map_or(&b""[..], |text| &text[PRELOAD.len()..]);
    let mut have = [false; 3];
    let mut n = 0;
    for i in 0usize.. {
        let entry: usize = match envp {
            0 => 0,
            at => uaccess::get(at.wrapping_add(i * 8))?,
        };
        if entry == 0 {
            break;
        }
        // SAFETY: nobody changes the strings (the caller's promise).
        let text = unsafe { uaccess::string(entry) }?;
        let mut replaced = entry;
        for (k, our) in ours.iter().enumerate() {
            let Some(mine) = text_of(*our) else { continue };
            let name = mine.iter().position(|b| *b == b'=').unwrap_or(0) + 1;
            if !text.starts_with(&mine[..name]) {
                continue;
            }
            if k == 0 && names_open_fd(&text[name..]) && text != mine {
                // A `canvas run` in this program: what it starts is a tenant of its own.
                return Ok(envp);
            }
            replaced = match (k, with) {
                // A second LD_PRELOAD, which no loader reads, is left alone.
                (2, _) if have[2] => entry,
                (2, _) => match preload(&mut room.preload, &text[name..], library, with) {
                    Becomes::Same => entry,
                    Becomes::Written => room.preload.as_ptr() as usize,
                    Becomes::Nothing => 0,
                },
                (_, true) => *our,
                (_, false) => 0,
            };
            have[k] = true;
        }
        if replaced == 0 {
            continue;
        }
        if n >= ENV_MAX {
            return Ok(envp);
        }
        room.entries[n] = replaced;
        n += 1;
    }
    for (k, our) in ours.iter().enumerate() {
        if with && !have[k] && *our != 0 {
            room.entries[n] = *our;
            n += 1;
        }
    }
    room.entries[n] = 0;
    Ok(room.entries.as_ptr() as usize)
}

/// A file that is about to be executed.
struct Target(proc::File);

impl Bytes for Target {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> usize {
        self.0.read_at(at as usize, buf).unwrap_or(0)
    }
}

/// Why the library must stay out of the new image.
enum Unfit {
    /// The loader of the new image cannot find it: there is no /proc here.
    Unreachable,
    /// Built for another processor, or for 32 bits.
    Foreign,
    /// Built for another C library.
    OtherLibc,
    /// Built with this sanitizer.
    Sanitizer(&'static str),
    /// A filter of the program kills callers of a system call that canvas makes at its start.
    Filter,
}

impl Unfit {
    /// Reports the reason, for the first such program of a run.
    ///
    /// # Safety
    ///
    /// `path` must be what the program passed to execve, and nobody change the string meanwhile.
    unsafe fn tell(&self, dir: usize, path: usize) {
        // The kernel has nothing to execute; or canvas's library is out of reach, which needs no report.
        if file::stat_at(dir, path, 0).is_err() || matches!(self, Unfit::Unreachable) {
            return;
        }
        if state::seg().unmanaged.fetch_add(1, Ordering::Relaxed) != 0 {
            return;
        }
        // SAFETY: nobody changes the path (the caller's promise).
        let name = unsafe { uaccess::string(path) }.unwrap_or(b"");
        let name = core::str::from_utf8(name).unwrap_or("a program");
        match self {
            Unfit::Foreign => {
                report!("{name} is built for another processor or for 32 bits; it runs unmanaged")
            }
            Unfit::OtherLibc => {
                report!("{name} uses a C library other than glibc; it runs unmanaged")
            }
            Unfit::Sanitizer(which) => report!("{name} is built with {which}; it runs unmanaged"),
            Unfit::Filter => report!(
                "a seccomp filter would end {name} for a call that canvas makes at its start; it runs unmanaged"
            ),
            Unfit::Unreachable => {}
        }
    }
}

/// Why the file at `path`, relative to directory `dir`, cannot be managed, if that can be told. A file that cannot be
/// read is left for the kernel to refuse.
fn unfit(dir: usize, path: usize) -> Option<Unfit> {
    let killed = EXEC.killed.load(Ordering::Relaxed);
    if killed == ALL || killed == proc::pid() {
        return Some(Unfit::Filter);
    }
    let library = EXEC.vars[2].load(Ordering::Relaxed);
    if library == 0 {
        return None;
    }
    let at = (libc::AT_FDCWD as usize, library + PRELOAD.len());
    if file::stat_at(at.0, at.1, 0).is_err() {
        return Some(Unfit::Unreachable);
    }
    let mut room = [0u8; PATH_BYTES];
    let (mut dir, mut path) = (dir, path);
    for _ in 0..INTERPRETERS_MAX {
        let file = Target(proc::File::open_at(dir, path).ok()?);
        match elf::inspect(&file, &mut room) {
            Image::Script { interpreter } => {
                let end = interpreter.len();
                room[end] = 0;
                (dir, path) = (at.0, room.as_ptr() as usize);
            }
            Image::Foreign => return Some(Unfit::Foreign),
            Image::Dynamic { loader } if !elf::is_glibc_loader(loader) => {
                return Some(Unfit::OtherLibc);
            }
            Image::Dynamic { .. } => return elf::sanitizer(&file).map(Unfit::Sanitizer),
            Image::Static | Image::Unknown => return None,
        }
    }
    None
}
/// Touches the strings of an argument vector.
///
/// # Safety
///
/// As for [`with_our_vars`].
unsafe fn touch_vector(at: usize) -> Result<(), Errno> {
    let mut i = 0;
    while at != 0 && i < 1 << 20 {
        let entry: usize = uaccess::get(at.wrapping_add(i * 8))?;
        if entry == 0 {
            break;
        }
        // SAFETY: nobody changes the strings (the caller's promise).
        unsafe { uaccess::string(entry) }?;
        i += 1;
    }
    Ok(())
}

/// Maximum tries: reclaim under pressure may evict the strings again before the kernel reads them, many times in a row.
const EXEC_TRIES: u32 = 20_000;

/// `execve`.
///
/// # Safety
///
/// `a` must be the registers of the program's call, and nobody change its strings meanwhile.
pub unsafe fn execve(a: &[usize; 6]) -> isize {
    // SAFETY: the program's call (the caller's promise).
    unsafe { exec(libc::SYS_execve, *a, 0) }
}

/// `execveat`: a directory's descriptor comes before the path.
///
/// # Safety
///
/// As for [`execve`].
pub unsafe fn execveat(a: &[usize; 6]) -> isize {
    // SAFETY: the program's call (the caller's promise).
    unsafe { exec(libc::SYS_execveat, *a, 1) }
}

/// Executes a new image, which is managed, too: its environment gets canvas's variables. The kernel reads the strings
/// itself, so they are made present first; if one has been evicted again by then, the call fails with EFAULT and is
/// repeated. `path` is the index of the argument that names the file; vector and environment follow it.
///
/// # Safety
///
/// As for [`execve`].
unsafe fn exec(nr: i64, mut a: [usize; 6], path: usize) -> isize {
    let (argv, envp) = (path + 1, path + 2);
    let dir = if path == 0 {
        libc::AT_FDCWD as usize
    } else {
        a[0]
    };
    args::touch_string(a[path]);
    let why = unfit(dir, a[path]);
    let mut room = Room {
        entries: [0; ENV_MAX + 4],
        preload: [0; PRELOAD_MAX],
    };
    // SAFETY: the environment of the program's call, which leaves it alone until that returns. What cannot be read is
    // left to the kernel, which says so when its turn comes.
    a[envp] = unsafe { with_our_vars(a[envp], &mut room, why.is_none()) }.unwrap_or(a[envp]);
    trace::before_exec();
    users::before_exec(dir, a[path], if path == 0 { 0 } else { a[4] });
    if let Some(why) = why {
        // SAFETY: the path of the program's call, which leaves it alone until that returns.
        unsafe { why.tell(dir, a[path]) };
    }
    let _limits = limits::as_the_program_has_them();
    let borrowed = state::PROCESS.is_vfork_child();
    for _ in 0..EXEC_TRIES {
        // SAFETY: path and vectors of the program's call, which leaves them alone until that returns; the second vector
        // may be the copy in `room`, which ends with null as well.
        let all_there = unsafe {
            [
                uaccess::string(a[path]).map(|_| ()),
                touch_vector(a[argv]),
                touch_vector(a[envp]),
            ]
        };
        let alone = members::before_exec();
        // The new image inherits what this thread believes to have blocked.
        let believed = beliefs::mine();
        let mask = (believed != 0).then(|| signal::set_mask(u64::MAX));
        if let Some(mask) = mask {
            signal::set_mask(mask | beliefs::unpack(believed));
            // Kept signals now go to the kernel, which keeps them across exec; if exec fails they come back when the
            // mask is opened again. In a vfork child they are the parent's.
            if !borrowed {
                beliefs::deliver(!believed);
            }
        }
        let ignored = actions::Ignored::where_safe(|| borrowed || threads::is_one_left());
        // SAFETY: the program's call (the caller's promise); `room` lives across it.
        let r = unsafe { raw(nr as usize, a) };
        drop(ignored);
        if let Some(mask) = mask {
            signal::set_mask(mask);
        }
        drop(alone);
        if r != -(libc::EFAULT as isize) || all_there.iter().any(Result::is_err) {
            return r;
        }
    }
    -(libc::EFAULT as isize)
}
