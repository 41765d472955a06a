//! libcanvas: loaded into a program by LD_PRELOAD, it captures the program's anonymous memory and pages it.
//! ARCHITECTURE.md follows a page through it.

/// Declares the state of one mechanism, a struct with its one static: of each field the type, and the value at start.
/// A fork's child goes on with a copy, but for what the function `after_fork_in_child` next to it resets.
macro_rules! state {
    ($(#[$of:meta])* $vis:vis static $NAME:ident: $Type:ident {
        $($(#[$about:meta])* $seen:vis $field:ident: $type:ty = $start:expr,)*
    }) => {
        $(#[$of])*
        $vis struct $Type { $($(#[$about])* $seen $field: $type,)* }
        $vis static $NAME: $Type = $Type { $($field: $start,)* };
    };
}

mod api;
mod capture;
mod far_tier;
mod memory;
mod own_memory;
mod paging;
mod process;
mod runtime;
mod shared;
mod tenant;

use crate::capture::{hooks, patch, stub};
use crate::far_tier::{keys, pairs, pool};
use crate::memory::{brk, exports, mm};
use crate::own_memory::{alloc, areas, own};
use crate::paging::{accounting, context, learn, regions, swapin, trace};
use crate::process::{altstack, arrival, beliefs, exec, limits, procs, sig, threads, tools, users};
use crate::runtime::{fds, fds::Fd, state, upcalls};
use crate::shared::members;
use crate::tenant::{far_area, life};
use canvas_shm::Mode;
use canvas_shm::segment::{self, config_flag};
use canvas_sys::seccomp::Scope;
use canvas_sys::{Errno, gate, mem, proc};
use canvas_types::{exit, layout};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;

/// Runs before the constructors of all libraries and of the program (`-z initfirst`), so that memory which an allocator
/// such as jemalloc maps in its constructor is managed, too.
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

// Nothing unwinds here: a panic ends the process. The standard library's unwinder would bring another library into each
// program.
core::arch::global_asm!(
    ".pushsection .text.no_unwinding,\"ax\",@progbits",
    ".irp name, _Unwind_Resume, _Unwind_GetIP, _Unwind_GetTextRelBase, _Unwind_GetDataRelBase, \
     _Unwind_GetLanguageSpecificData, _Unwind_GetIPInfo, _Unwind_GetRegionStart, _Unwind_SetGR, _Unwind_SetIP, \
     _Unwind_RaiseException, _Unwind_DeleteException, _Unwind_GetCFA",
    ".globl \\name",
    ".hidden \\name",
    "\\name:",
    ".endr",
    "ud2",
    // No frame: the end of the stack.
    ".globl _Unwind_Backtrace",
    ".hidden _Unwind_Backtrace",
    "_Unwind_Backtrace:",
    "mov eax, 5",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    /// The break as libc remembers it (exported by glibc).
    static mut __curbrk: usize;
    /// The environment as libc knows it; null until libc's own constructor has run.
    static environ: *mut *mut c_char;
}

/// The environment as the loader passes it to constructors; libc takes it over later.
static LOADERS_ENVIRONMENT: AtomicPtr<*mut c_char> = AtomicPtr::new(core::ptr::null_mut());

/// The environment: strings "NAME=value", terminated by null.
fn environment() -> *mut *mut c_char {
    // SAFETY: a variable of libc's; start-up, which alone calls this, has one thread of the program.
    let libcs = unsafe { environ };
    if libcs.is_null() {
        LOADERS_ENVIRONMENT.load(Ordering::Relaxed)
    } else {
        libcs
    }
}

/// Why a program stays unmanaged.
enum Failure {
    /// Not started by `canvas run`: report nothing.
    NotAsked,
    /// Nothing can ever become far: the program and its children are left to the kernel.
    NoLimit,
    /// The program runs under this tool, which controls memory and signals itself.
    Tool(&'static str),
    /// Another reason, with the kernel's error.
    Because(&'static str, Errno),
}

/// # Safety
///
/// `environment` is the array of strings that the loader passes to each constructor.
unsafe extern "C" fn start(
    _arguments: c_int,
    _argument: *mut *mut c_char,
    environment: *mut *mut c_char,
) {
    LOADERS_ENVIRONMENT.store(environment, Ordering::Relaxed);
    canvas_sys::compat::keep();
    std::panic::set_hook(Box::new(|info| {
        report!("internal error: {info}");
        proc::exit_group(exit::RUN_FAILED);
    }));
    match try_start() {
        Ok(()) => {
            exports::open();
            state::count(canvas_shm::Counter::Execs, 1);
        }
        Err(Failure::NotAsked) => {}
        Err(Failure::NoLimit) => {
            limits::give_back();
            state::seg().managed.fetch_add(1, Ordering::Relaxed);
        }
        Err(Failure::Tool(tool)) => {
            limits::give_back();
            report!("{tool} controls this program, so it runs unmanaged");
            refuse();
        }
        Err(Failure::Because(what, e)) => {
            limits::give_back();
            report!("{what} (error {}): this program runs unmanaged", e.0);
            refuse();
        }
    }
}

/// Counts an unmanaged program; with `--require`, ends it.
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

/// A variable of the environment: "NAME=value", valid while nobody changes it.
struct Variable {
    text: *mut c_char,
    name_len: usize,
}

impl Variable {
    fn value(&self) -> &[u8] {
        &self.whole().to_bytes()[self.name_len + 1..]
    }
    fn whole(&self) -> &CStr {
        // SAFETY: a C string of the environment, by `variable`; start-up has one thread, and changes a string only with
        // the variable itself in hand ([`Variable::cut`]).
        unsafe { CStr::from_ptr(self.text) }
    }
    /// A copy that outlives the program's changes to its environment.
    fn keep(&self) -> &'static CStr {
        Box::leak(self.whole().to_owned().into_boxed_c_str())
    }
    /// Removes the first `n` bytes of the value.
    fn cut(self, n: usize) {
        let left = self.value().len() - n;
        // SAFETY: within the string and its end, which a process may write to; no reference to it is left, because all
        // borrow from `self`.
        unsafe {
            let value = self.text.add(self.name_len + 1);
            core::ptr::copy(value.add(n), value, left + 1);
        }
    }
}

/// Finds a variable of the environment. Only for start-up, which has one thread.
fn variable(name: &str) -> Option<Variable> {
    // SAFETY: the array, which ends with null, and its C strings are as kernel and loader left them; start-up has one
    // thread of the program, which is here.
    unsafe {
        let mut at = environment();
        while !at.is_null() && !(*at).is_null() {
            let text = CStr::from_ptr(*at).to_bytes();
            if text.len() > name.len()
                && text.starts_with(name.as_bytes())
                && text[name.len()] == b'='
            {
                return Some(Variable {
                    text: *at,
                    name_len: name.len(),
                });
            }
            at = at.add(1);
        }
    }
    None
}

fn number(text: &[u8]) -> Option<i32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// Adds a description to an error of the kernel.
fn because(what: &'static str) -> impl FnOnce(Errno) -> Failure {
    move |e| Failure::Because(what, e)
}

fn try_start() -> Result<(), Failure> {
    let Some(fd_variable) = variable(segment::ENV_SEGMENT_FD) else {
        return Err(Failure::NotAsked);
    };
    // First, because under the current limit canvas's areas may not fit.
    limits::keep();
    let fd = attach_segment(&fd_variable)?;
    let seg = state::seg();
    SEGMENT_OK.store(true, Ordering::Relaxed);
    if let Some(tool) = tools::around(|name| variable(name).is_some()) {
        return Err(Failure::Tool(tool));
    }
    if seg.stands_aside() {
        stand_aside();
        return Err(Failure::NoLimit);
    }
    // Ask before the call gate opens: no filter answers calls that go through the gate.
    let filter = canvas_sys::seccomp::installed();
    // The traps of another tenant's filter would take canvas's own calls for the program's.
    if filter.is_some_and(|there| there.bases != seg.config.bases()) {
        return Err(Failure::Because(
            "the program that started this one belongs to another tenant of canvas, whose system call filter \
             stays in place",
            Errno(libc::EEXIST),
        ));
    }
    keep_from_the_program(fd, &fd_variable);
    let thread_mode = seg.config.mode.load(Ordering::Relaxed) == Mode::Thread as u32;
    map_memory(thread_mode)?;
    let is_new = join_tenant(fd)?;
    arrival::init();
    if thread_mode {
        threads::start_handlers().map_err(because("fault handler threads cannot be started"))?;
    } else {
        sig::install().map_err(because("the SIGBUS handler cannot be installed"))?;
    }
    upcalls::set(threads::start_reclaimer, hooks::dispatch, stub::entry);
    patch_calls()?;
    // From here on the heap grows in the managed range, which lies above the native heap. To malloc the break has moved
    // up, as if by a foreign sbrk.
    let break_at = brk::begin().map_err(because("the break cannot be moved"))?;
    // SAFETY: libc's variable, which malloc reads; start-up has one thread of the program, which is here.
    unsafe { __curbrk = break_at };
    altstack::init();
    sig::install_trap().map_err(because("the SIGSYS handler cannot be installed"))?;
    // An exec leaves the filter of the previous image in place, usually an equal one. Without a filter only calls from
    // outside libc are affected.
    let scope = if thread_mode {
        Scope::Memory
    } else {
        Scope::Pointers
    };
    if filter.is_none_or(|there| there.scope != scope && !thread_mode) {
        let _ = hooks::install_filter(scope);
    }
    mm::inherit_window(&regions::lock(), false).map_err(because(
        "managed memory cannot be hidden from children that canvas does not see",
    ))?;
    accounting::measure_native();
    // SAFETY: start-up calls this once, after `areas::map`; what touches shared memory comes later.
    unsafe { members::start() };
    users::look();
    // The reclaim thread keeps only those descriptors that are canvas's when it starts.
    threads::allow_reclaimer();
    if seg.has_limit() {
        threads::start_reclaimer();
    }
    trace::start();
    pairs::start(beliefs::ours());
    if is_new {
        seg.managed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Maps the tenant segment and takes over the addresses that it names; returns its descriptor.
fn attach_segment(variable: &Variable) -> Result<i32, Failure> {
    let bad = Errno(libc::EBADF);
    let fd = number(variable.value())
        .ok_or(Failure::Because("CANVAS_SEGMENT_FD is not a number", bad))?;
    let at = mem::map_shared(fd, 0, segment::SEGMENT_BYTES, mem::READ_WRITE)
        .map_err(because("the tenant segment cannot be mapped"))?;
    // SAFETY: a shared, writable mapping of the full size, made just now, which stays.
    unsafe { state::attach(at) };
    if state::seg().magic.load(Ordering::Acquire) != segment::MAGIC {
        return Err(Failure::Because(
            "the tenant segment was made by another version of canvas",
            bad,
        ));
    }
    if !layout::place(state::seg().config.bases()) {
        return Err(Failure::Because(
            "the tenant segment is damaged: it names no addresses",
            bad,
        ));
    }
    Ok(fd)
}

/// Protects canvas's descriptors from being closed by the program, and passes canvas's variables to programs that it
/// starts.
fn keep_from_the_program(fd: i32, fd_variable: &Variable) {
    fds::guard(Fd::Segment, fd);
    exec::remember_var(0, fd_variable.keep());
    if let Some(library) = variable(segment::ENV_PRELOAD_FD) {
        fds::guard(Fd::Library, number(library.value()).unwrap_or(-1));
        exec::remember_var(1, library.keep());
    }
    if let Some(preload) = variable("LD_PRELOAD") {
        let text = preload.value();
        // Only canvas's own part, for programs started with an empty environment.
        let ours = text
            .split(|b| matches!(b, b':' | b' '))
            .next()
            .unwrap_or(text);
        let mut var = b"LD_PRELOAD=".to_vec();
        var.extend_from_slice(ours);
        if let Ok(var) = CString::new(var) {
            exec::remember_var(2, Box::leak(var.into_boxed_c_str()));
        }
    }
    let trace = state::seg().config.trace_fd.load(Ordering::Relaxed) as i32;
    if trace > 0 {
        fds::guard(Fd::Trace, trace);
    }
}

/// Maps and registers all of canvas's memory, the managed range last.
fn map_memory(thread_mode: bool) -> Result<(), Failure> {
    gate::open().map_err(because("the call gate cannot be mapped"))?;
    own::note_fixed();
    areas::map()
        .and_then(|()| context::open_first())
        .map_err(because("address space for page tables cannot be reserved"))?;
    state::PROCESS.begin(thread_mode);
    let u = procs::open_uffd(thread_mode)
        .map_err(because("userfaultfd is not available; see `canvas doctor`"))?;
    state::set_uffd(u);
    threads::open_pagemap();
    // SAFETY: called once, with one thread, after `areas::map`; what takes the mapping lock comes later.
    unsafe { regions::init() };
    mm::reserve_window().map_err(because(
        "the range for managed memory cannot be reserved or registered",
    ))?;
    Ok(())
}

/// Takes a process slot of the tenant and what belongs to it; returns false if an earlier image of this process had
/// one.
fn join_tenant(fd: i32) -> Result<bool, Failure> {
    far_area::map(fd).map_err(because(
        "the far area of the tenant segment cannot be mapped",
    ))?;
    let is_new = life::begin().map_err(because(
        "the tenant segment cannot be locked (the lock shows others that a process lives)",
    ))?;
    let slot = procs::take_slot(life::id()).ok_or(Failure::Because(
        "the tenant has too many processes",
        Errno(libc::EAGAIN),
    ))?;
    procs::begin_in(slot);
    far_area::take_mailbox();
    // SAFETY: called once, after `areas::map` (`map_memory`); what hashes pages comes later.
    unsafe { keys::init() }.map_err(because("the kernel provides no random bytes (getrandom)"))?;
    // SAFETY: called once, after areas, segment and keys; what uses the pool comes later.
    unsafe { pool::init() };
    state::PROCESS
        .pager
        .prefetchers
        .choose(state::seg().config.prefetch());
    trace::init();
    threads::open_pidfd();
    accounting::size_cache(trace::cache_pages());
    swapin::start();
    paging::app_tier::start();
    learn::start();
    Ok(is_new)
}

/// Patches the system calls of libc and the loader.
fn patch_calls() -> Result<(), Failure> {
    let report_left = variable("CANVAS_DEBUG_START").is_some();
    // SAFETY: start-up, with one thread of the program, patches once. Nothing but the summary is kept of what that
    // allocates: the decoder is used nowhere else.
    let summary = unsafe { alloc::decode(|| patch::patch_libc(report_left)) };
    if variable("CANVAS_DEBUG_START").is_some() {
        report!(
            "system call sites patched {} (prepared {}), left {}",
            summary.patched,
            summary.prepared,
            summary.left
        );
    }
    if let Some(e) = summary.left_writable {
        // The patches cannot be undone either: patched code leads to canvas.
        report!(
            "the code of the C library cannot be made read-only again (error {}), so this program is not run",
            e.0
        );
        state::seg().refused.store(1, Ordering::Relaxed);
        proc::exit_group(exit::RUN_FAILED);
    }
    if !summary.complete() {
        return Err(Failure::Because(
            "canvas cannot patch this C library (it can patch glibc 2.31 and later)",
            Errno(libc::ENOSYS),
        ));
    }
    Ok(())
}

/// Removes what `canvas run` put into the environment and the descriptors. A program that is not paged does not guard
/// these descriptors, and a child that has closed them could not load the library.
fn stand_aside() {
    for name in [segment::ENV_SEGMENT_FD, segment::ENV_PRELOAD_FD] {
        let Some(var) = variable(name) else {
            continue;
        };
        if let Some(fd) = number(var.value()) {
            // `canvas run` made it for us.
            canvas_sys::proc::close(fd);
        }
        forget_variable(&var);
    }
    let Some(preload) = variable("LD_PRELOAD") else {
        return;
    };
    // Canvas's library is the first of the list.
    match preload
        .value()
        .iter()
        .position(|b| matches!(b, b':' | b' '))
    {
        None => forget_variable(&preload),
        Some(end) => preload.cut(end + 1),
    }
}

/// Removes a string from the environment.
fn forget_variable(var: &Variable) {
    // SAFETY: the array ends with null, which moves down with the rest; start-up has one thread of the program, which
    // is here.
    unsafe {
        let mut at = environment();
        while !(*at).is_null() && *at != var.text {
            at = at.add(1);
        }
        while !(*at).is_null() {
            *at = *at.add(1);
            at = at.add(1);
        }
    }
}
