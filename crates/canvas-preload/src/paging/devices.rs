//! Holds reclaim during calls by which a device may write to pages that no argument names: an `ioctl` on a device whose
//! argument points to a structure, perhaps with pointers to buffers (SG_IO, NVMe passthrough). The kernel pins such
//! pages for the call, but neither reports them nor keeps canvas from unmapping them: the device's data would be lost.
//! So reclaim in this process stops during the call, for at most [`holds::MAX_NS`] per call.
//!
//! A program that spends nearly all its time in such calls (sound, graphics) would never be reclaimed from. So when the
//! tenant is past its limit and reclaim was held, the next call first evicts pages, waiting a little if necessary.
//!
//! Virtual machines by KVM are different: the guest's processors touch its memory inside an `ioctl` without a pointer
//! argument that runs on and on. Signal mode serves only a thread's own faults, so the guest would stop at its first
//! far page. In signal mode [`refuses`] fails the creation of a machine, and monitors that can emulate one do so.

use canvas_core::pager::holds::{self, HoldingCall};
use canvas_core::vm::{ledger, reclaim};
use canvas_sys::{file, gate, proc};
use canvas_types::PAGE_SIZE;
use core::sync::atomic::Ordering;

use crate::paging::freeze;
use crate::report;
use crate::runtime::state::PROCESS;

const _: () = assert!(
    holds::MAX_NS == 60_000_000_000,
    "SEMANTICS.md says a minute"
);

/// Holds reclaim until dropped.
pub struct Held(HoldingCall);

impl Drop for Held {
    fn drop(&mut self) {
        PROCESS.pager.holds.end(self.0);
    }
}

/// KVM_CREATE_VM: _IO(0xae, 1).
const CREATE_VM: u32 = 0xae01;
/// Device number of /dev/kvm, whatever its path.
const KVM: u64 = libc::makedev(10, 232);

/// Whether this is an `ioctl` that creates a virtual machine which could not run. Reports the first one.
pub fn refuses(a: &[usize; 6]) -> bool {
    if a[1] as u32 != CREATE_VM || PROCESS.in_thread_mode() {
        return false;
    }
    let is_kvm = |f: libc::stat| f.st_mode & libc::S_IFMT == libc::S_IFCHR && f.st_rdev == KVM;
    if !file::stat(a[0] as i32).is_ok_and(is_kvm) {
        return false;
    }
    report!(
        once: "KVM is refused to this program, because signal mode cannot serve a guest's processors; write --mode \
         thread, or let the guest be emulated (qemu: -accel tcg)"
    );
    true
}

/// Holds reclaim for an `ioctl` with these arguments, if it may let a device write to memory.
pub fn before_ioctl(a: &[usize; 6]) -> Option<Held> {
    // The first page is never mapped: such an argument is no pointer.
    if a[2] < PAGE_SIZE || !is_device(a[0]) {
        return None;
    }
    let was_held = &PROCESS.pager.was_held;
    if was_held.load(Ordering::Relaxed) && was_held.swap(false, Ordering::Relaxed) {
        give();
    }
    let held = Held(PROCESS.pager.holds.begin(proc::now_ns()));
    // A batch takes at most a millisecond, but one in a vfork child that was killed never ends.
    const PATIENCE_NS: u64 = 1_000_000_000;
    let begun = proc::now_ns();
    while !PROCESS.pager.holds.is_settled() && proc::now_ns() < begun + PATIENCE_NS {
        gate::wait(50_000);
    }
    Some(held)
}

fn is_device(fd: usize) -> bool {
    let device = |mode: u32| matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK);
    file::stat(fd as i32).is_ok_and(|f| device(f.st_mode))
}

/// Evicts what reclaim would have evicted, while the tenant is past its limit. Waits a little for other calls that hold
/// reclaim.
#[cold]
fn give() {
    const WAITS_MAX: u32 = 20;
    let mut waits = 0;
    while waits < WAITS_MAX && ledger::is_past_limit(&PROCESS) {
        let done = {
            let _inside = freeze::enter();
            match ledger::excess(&PROCESS) {
                0 => return,
                pages => reclaim::reclaim(&PROCESS, pages.min(64) as u32, reclaim::Reason::Direct),
            }
        };
        if done == 0 {
            waits += 1;
            gate::wait(1_000_000);
        }
    }
}
