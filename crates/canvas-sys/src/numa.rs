//! NUMA nodes: where the kernel takes memory from.

use crate::gate::{Errno, sys6};
use crate::mem;
use canvas_types::PAGE_SIZE;

/// The kernel's MPOL_PREFERRED: from this node or, if it has no memory left, from another.
const PREFERRED: usize = 1;
/// Flags of get_mempolicy, MPOL_F_NODE and MPOL_F_ADDR: return the node of the page at an address.
const F_NODE: usize = 1 << 0;
const F_ADDR: usize = 1 << 1;
const _: () = assert!(PREFERRED == libc::MPOL_PREFERRED as usize);
const _: () = assert!(libc::SYS_mbind == 237 && libc::SYS_get_mempolicy == 239);

/// Nodes that a mask here can contain: the kernel's largest CONFIG_NODES_SHIFT is 10.
pub const NODES: u32 = 1024;
const WORDS: usize = NODES as usize / 64;
const _: () = assert!(NODES.is_multiple_of(64));

/// Makes the kernel take memory for `bytes` from `addr` on from this node, while it has any. Changes neither contents
/// nor where present pages lie.
pub fn prefer(addr: usize, bytes: usize, node: u32) -> Result<(), Errno> {
    let mut mask = [0u64; WORDS];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return Err(Errno(libc::EINVAL));
    };
    *word |= 1 << (node % 64);
    // The kernel uses one bit less than the number it gets.
    // SAFETY: the kernel reads the mask, and changes only where later pages come from.
    unsafe {
        sys6(
            libc::SYS_mbind,
            addr,
            bytes,
            PREFERRED,
            mask.as_ptr() as usize,
            NODES as usize + 1,
            0,
        )
    }
    .map(|_| ())
}

/// The node of the page at `addr`, which is brought in if it is absent.
pub fn node_of(addr: usize) -> Result<u32, Errno> {
    let mut node = 0i32;
    // SAFETY: the kernel writes a number to `node`, and nothing else.
    unsafe {
        sys6(
            libc::SYS_get_mempolicy,
            &raw mut node as usize,
            0,
            0,
            addr,
            F_NODE | F_ADDR,
            0,
        )
    }?;
    Ok(node as u32)
}

/// Checks whether the kernel does this here. It does not in containers whose seccomp profile refuses it, nor for a node
/// that the cpuset excludes.
pub fn check(node: u32) -> Result<(), Errno> {
    let at = mem::map_lazy(0, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
    let bound = prefer(at, PAGE_SIZE, node);
    let asked = bound.and_then(|()| {
        // SAFETY: a writable page that was mapped just now, and that nothing else uses.
        unsafe { (at as *mut u8).write_volatile(1) };
        node_of(at)
    });
    // SAFETY: mapped above; nothing uses it any more.
    let _ = unsafe { mem::unmap(at, PAGE_SIZE) };
    asked.map(|_| ())
}
