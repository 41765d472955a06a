//! libcanvas: loaded into a program by LD_PRELOAD, it captures the program's anonymous memory and
//! pages it. See ARCHITECTURE.md for a page's way through it.

mod account;
mod ahead;
mod altstack;
mod areas;
mod args;
mod cache;
mod chunk;
mod compact;
mod context;
mod copies;
mod deep;
mod family;
mod fault;
mod freeze;
mod hooks;
mod mm;
mod patch;
mod pool;
mod procs;
mod protect;
mod reclaim;
mod remap;
mod report;
mod shared;
mod shared_kernel;
mod shared_map;
mod shared_pin;
mod sig;
mod smaps;
mod state;
mod stub;
mod swapin;
mod threads;
mod trace;

use canvas_shm::segment::{self, config_flag};
use canvas_shm::{Mode, Segment};
use canvas_sys::{Errno, gate, mem, proc};
use canvas_types::exit;
use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering;

/// Runs before the program's own constructors and main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

unsafe extern "C" {
    /// The break as libc remembers it (exported by glibc).
    static mut __curbrk: usize;
    /// The environment: strings "NAME=value" up to a null, as libc knows it.
    static environ: *mut *const c_char;
}

/// Why a program stays unmanaged.
enum Failure {
    /// Not started by `canvas run`: say nothing.
    NotAsked,
    /// Nothing can ever become far: the program is left to the kernel, and so are its children.
    NoLimit,
    /// In words.
    Because(&'static str, Errno),
}

extern "C" fn start() {
    std::panic::set_hook(Box::new(|info| {
        report!("internal error: {info}");
        proc::exit_group(exit::RUN_FAILED);
    }));
    match try_start() {
        Ok(()) => {
            state::seg().managed.fetch_add(1, Ordering::Relaxed);
            state::count(canvas_shm::Counter::Execs, 1);
        }
        Err(Failure::NotAsked) => {}
        Err(Failure::NoLimit) => {
            state::seg().managed.fetch_add(1, Ordering::Relaxed);
        }
        Err(Failure::Because(what, e)) => {
            report!("{what} (error {}): this program runs unmanaged", e.0);
            refuse();
        }
    }
}

/// Counts an unmanaged program; under `--require` it does not run at all.
fn refuse() {
    if !SEGMENT_OK.load(Ordering::Relaxed) {
        return;
    }
    let seg = state::seg();
    seg.unmanaged.fetch_add(1, Ordering::Relaxed);
    if seg.config.flags.load(Ordering::Relaxed) & config_flag::REQUIRE != 0 {
        seg.refused.store(1, Ordering::Relaxed);
        proc::exit_group(exit::RUN_FAILED);
    }
}

static SEGMENT_OK: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// The value of an environment variable, and the whole "NAME=value" string.
fn variable(name: &str) -> Option<(&'static [u8], *const u8)> {
    // SAFETY: start-up has one thread; the environment is as the kernel and loader left it.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let text = CStr::from_ptr(*at).to_bytes();
            if text.len() > name.len()
                && text.starts_with(name.as_bytes())
                && text[name.len()] == b'='
            {
                return Some((&text[name.len() + 1..], (*at).cast()));
            }
            at = at.add(1);
        }
    }
    None
}

fn number(text: &[u8]) -> Option<i32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn try_start() -> Result<(), Failure> {
    let Some((fd_text, fd_var)) = variable(segment::ENV_SEGMENT_FD) else {
        return Err(Failure::NotAsked);
    };
    let because = |what| move |e| Failure::Because(what, e);
    let bad = Errno(libc::EBADF);
    let fd = number(fd_text).ok_or(Failure::Because("CANVAS_SEGMENT_FD is not a number", bad))?;
    let at = mem::map_shared(fd, 0, segment::SEGMENT_BYTES)
        .map_err(because("the tenant segment cannot be mapped"))?;
    // SAFETY: a fresh shared mapping of the full size, which stays.
    unsafe { state::attach(at) };
    if state::seg().magic.load(Ordering::Acquire) != segment::MAGIC {
        return Err(Failure::Because(
            "the tenant segment is of another version of canvas",
            bad,
        ));
    }
    SEGMENT_OK.store(true, Ordering::Relaxed);
    let seg: &Segment = state::seg();
    if seg.stands_aside() {
        stand_aside();
        return Err(Failure::NoLimit);
    }
    procs::guard_fd(0, fd);
    procs::remember_var(0, leak(fd_var));
    if let Some((text, var)) = variable(segment::ENV_PRELOAD_FD) {
        procs::guard_fd(1, number(text).unwrap_or(-1));
        procs::remember_var(1, leak(var));
    }
    if let Some((text, _)) = variable("LD_PRELOAD") {
        // Only our own part of it, for programs started with an empty environment.
        let ours = text
            .split(|b| matches!(b, b':' | b' '))
            .next()
            .unwrap_or(text);
        let mut var = b"LD_PRELOAD=".to_vec();
        var.extend_from_slice(ours);
        var.push(0);
        procs::remember_var(2, Box::leak(var.into_boxed_slice()).as_ptr());
    }
    let trace = seg.config.trace_fd.load(Ordering::Relaxed) as i32;
    if trace > 0 {
        procs::guard_fd(4, trace);
    }
    gate::open().map_err(because("the call gate cannot be mapped"))?;
    raise_limits();
    areas::map().map_err(because("address space for page tables cannot be reserved"))?;
    threads::init_fd_floor();
    let thread_mode = seg.config.mode.load(Ordering::Relaxed) == Mode::Thread as u32;
    state::THREAD_MODE.store(thread_mode, Ordering::Relaxed);
    let u = procs::open_uffd(thread_mode)
        .map_err(because("userfaultfd is not available; see `canvas doctor`"))?;
    state::set_uffd(u);
    mm::init();
    mm::reserve_window().map_err(because("the window cannot be reserved or registered"))?;
    state::PID.store(proc::pid(), Ordering::Relaxed);
    deep::map(fd).map_err(because(
        "the far area of the tenant segment cannot be mapped",
    ))?;
    let slot = procs::take_slot().ok_or(Failure::Because(
        "the tenant has too many processes",
        Errno(libc::EAGAIN),
    ))?;
    state::set_slot(slot);
    deep::take_channel();
    pool::init();
    state::PREFETCHERS.choose(seg.config.prefetch());
    trace::init();
    threads::open_pidfd();
    account::size_cache();
    if thread_mode {
        threads::start_handlers().map_err(because("fault handler threads cannot be started"))?;
    } else {
        sig::install().map_err(because("the SIGBUS handler cannot be installed"))?;
    }
    hooks::init();
    let summary = patch::patch_libc(variable("CANVAS_DEBUG_START").is_some());
    if variable("CANVAS_DEBUG_START").is_some() {
        report!(
            "system call sites patched {}, left {}",
            summary.patched,
            summary.left
        );
    }
    if !summary.complete() {
        return Err(Failure::Because(
            "this C library is not one that canvas can patch (glibc 2.31 or later is)",
            Errno(libc::ENOSYS),
        ));
    }
    // From here on the heap grows in the window. It lies above the native one: to malloc the
    // break has moved up, which it takes for a foreign sbrk.
    // SAFETY: start-up has one thread.
    unsafe { __curbrk = canvas_types::layout::WINDOW_BASE };
    if !thread_mode {
        altstack::init();
        sig::install_trap().map_err(because("the SIGSYS handler cannot be installed"))?;
        // Without the filter only calls from outside of libc are affected: they see EFAULT.
        let _ = hooks::install_filter();
    }
    mm::inherit_window(false);
    account::measure_native();
    if seg.has_limit() {
        threads::start_reclaimer();
    }
    shared::start();
    trace::start();
    Ok(())
}

/// Takes back what `canvas run` put into the environment and the descriptors: nobody guards them in
/// a program that is not paged, and a child that has closed them could not load the library.
fn stand_aside() {
    for name in [segment::ENV_SEGMENT_FD, segment::ENV_PRELOAD_FD] {
        let Some((text, var)) = variable(name) else {
            continue;
        };
        if let Some(fd) = number(text) {
            // SAFETY: closes a descriptor that `canvas run` made for us.
            let _ = unsafe { canvas_sys::sys1(libc::SYS_close, fd as usize) };
        }
        forget_variable(var);
    }
    let Some((text, var)) = variable("LD_PRELOAD") else {
        return;
    };
    // Ours is the first of the list.
    let Some(end) = text.iter().position(|b| matches!(b, b':' | b' ')) else {
        return forget_variable(var);
    };
    let rest = &text[end + 1..];
    // SAFETY: a string of the environment's, which the process may write to; what is left of it
    // and its end move down within it. Start-up has one thread, and `text` is not used after this.
    unsafe { core::ptr::copy(rest.as_ptr(), text.as_ptr().cast_mut(), rest.len() + 1) };
}

/// Takes a string out of the environment.
fn forget_variable(var: *const u8) {
    // SAFETY: start-up has one thread; the array ends with null, which moves down with the rest.
    unsafe {
        let mut at = environ;
        while !(*at).is_null() && (*at).cast() != var {
            at = at.add(1);
        }
        while !(*at).is_null() {
            *at = *at.add(1);
            at = at.add(1);
        }
    }
}

/// A C string that outlives the program's changes to its environment.
fn leak(text: *const u8) -> *const u8 {
    // SAFETY: a C string of the environment.
    let bytes = unsafe { CStr::from_ptr(text.cast()) }.to_bytes_with_nul();
    Box::leak(bytes.to_vec().into_boxed_slice()).as_ptr()
}

/// Our reservations do not fit under a limit on address space: the program's soft limits are
/// kept and enforced by us, and the kernel's are raised as far as they may be.
fn raise_limits() {
    for (resource, kept) in [
        (libc::RLIMIT_AS, &mm::LIMIT_AS),
        (libc::RLIMIT_DATA, &mm::LIMIT_DATA),
    ] {
        let mut l = [0u64; 2];
        // SAFETY: our own structure.
        let ok = unsafe {
            canvas_sys::sys4(
                libc::SYS_prlimit64,
                0,
                resource as usize,
                0,
                l.as_mut_ptr() as usize,
            )
        };
        if ok.is_ok() && l[0] != u64::MAX {
            kept.store(l[0], Ordering::Relaxed);
            l[0] = l[1];
            // SAFETY: as above.
            let _ = unsafe {
                canvas_sys::sys4(
                    libc::SYS_prlimit64,
                    0,
                    resource as usize,
                    l.as_ptr() as usize,
                    0,
                )
            };
        }
    }
}
