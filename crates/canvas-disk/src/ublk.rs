//! The disk as a block device of this host, on which the host's own kernel may swap.
//!
//! Each queue has a thread, which serves its requests in order. From its first request on it
//! allocates no memory, since the kernel may be out of memory and waiting for this thread.

use canvas_sys::Errno;

use crate::sys::ublk::Kind;
pub use crate::sys::ublk::{Device, Queue};
use crate::{DiskError, PageStore, Scratch, span};

/// Serves a queue in this thread until its device is stopped. Sends to `began` whether it does; the
/// device must be started afterwards.
pub fn serve(
    mut queue: Queue,
    store: &impl PageStore,
    began: impl FnOnce(Result<(), Errno>),
) -> Result<(), Errno> {
    let mut scratch = Box::<Scratch>::default();
    let begun = queue.begin();
    began(begun);
    begun?;
    while let Some(request) = queue.wait()? {
        let range = (request.kind, request.offset, request.bytes);
        let data = queue.data(&request);
        let result = perform(range, data, store, &mut scratch);
        queue.done(request, result);
    }
    Ok(())
}

/// Performs a request on a range with its data; otherwise returns an error number.
fn perform(
    (kind, offset, bytes): (Kind, u64, u64),
    data: Option<&mut [u8]>,
    store: &impl PageStore,
    scratch: &mut Scratch,
) -> Result<(), i32> {
    let data = data.ok_or(number::EINVAL);
    let done = match kind {
        Kind::Read => span::read(store, offset, data?, scratch),
        Kind::Write => span::write(store, offset, data?, scratch),
        Kind::Discard => span::discard(store, offset, bytes),
        Kind::Zero => span::zero(store, offset, bytes, scratch),
        // There is no storage behind this process to flush to.
        Kind::Flush => Ok(()),
        Kind::Other => return Err(number::EOPNOTSUPP),
    };
    done.map_err(|e| match e {
        DiskError::Full => number::ENOSPC,
        DiskError::Outside => number::EINVAL,
        DiskError::Damaged | DiskError::Unreachable => number::EIO,
    })
}

/// Linux's error numbers.
mod number {
    use nix::errno::Errno;

    pub const EIO: i32 = Errno::EIO as i32;
    pub const EINVAL: i32 = Errno::EINVAL as i32;
    pub const ENOSPC: i32 = Errno::ENOSPC as i32;
    pub const EOPNOTSUPP: i32 = Errno::EOPNOTSUPP as i32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamStore;
    use crate::{DiskMemory, PoolStore};
    use canvas_types::{Codec, PAGE_SIZE};
    use number::*;
    use proptest::prelude::*;

    const PAGES: u64 = 32;
    const PAGE: u64 = PAGE_SIZE as u64;

    fn kind() -> impl Strategy<Value = Kind> {
        use Kind::*;
        prop_oneof![
            4 => Just(Write),
            4 => Just(Read),
            2 => Just(Discard),
            2 => Just(Zero),
            1 => Just(Flush),
            1 => Just(Other),
        ]
    }

    proptest! {
        /// For any ranges that the kernel requests, the disk behaves like an array of bytes, and
        /// refuses what it does not support.
        #[test]
        fn requests_read_and_change_bytes(
            plan in prop::collection::vec((kind(), 0..PAGES + 2, 0..5u64, any::<u8>()), 1..80),
        ) {
            let memory = DiskMemory::taken(PAGES, 1 << 20).unwrap();
            let stored = PoolStore::new(&memory, Codec::Lz4);
            let oracle = RamStore::new(PAGES);
            let mut scratch = Box::<Scratch>::default();
            for (kind, page, pages, fill) in plan {
                let (offset, bytes) = (page * PAGE, pages * PAGE);
                let mut data = vec![fill; bytes as usize];
                let is_inside = page + pages <= PAGES;
                let got = perform((kind, offset, bytes), Some(&mut data), &stored, &mut scratch);
                let wanted = match kind {
                    Kind::Other => Err(EOPNOTSUPP),
                    Kind::Flush => Ok(()),
                    _ if is_inside => Ok(()),
                    _ => Err(EINVAL),
                };
                prop_assert_eq!(got, wanted);
                let range = page..page + pages;
                match kind {
                    Kind::Read if is_inside => {
                        let seen = data.as_chunks::<PAGE_SIZE>().0;
                        for (n, seen) in range.zip(seen) {
                            prop_assert!(*seen == oracle.page(n), "page {}", n);
                        }
                    }
                    Kind::Write if is_inside => {
                        for n in range {
                            oracle.write(n, &[fill; PAGE_SIZE], &mut scratch).unwrap();
                        }
                    }
                    Kind::Discard | Kind::Zero if is_inside => {
                        range.for_each(|n| oracle.discard(n).unwrap());
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_done_has_its_number() {
        let memory = DiskMemory::taken(1024, crate::pool::POOL_BYTES_MIN).unwrap();
        let store = PoolStore::new(&memory, Codec::None);
        let mut scratch = Box::<Scratch>::default();
        let mut ask = |range, data: Option<&mut [u8]>| perform(range, data, &store, &mut scratch);
        assert_eq!(ask((Kind::Read, 0, 1 << 30), None), Err(EINVAL));
        assert_eq!(ask((Kind::Discard, u64::MAX, PAGE), None), Err(EINVAL));
        let mut page = [0; PAGE_SIZE];
        let full = (0..1024u64).find_map(|n| {
            page[..8].copy_from_slice(&(n + 1).to_ne_bytes());
            ask((Kind::Write, n * PAGE, PAGE), Some(&mut page)).err()
        });
        assert_eq!(full, Some(ENOSPC));
    }
}
