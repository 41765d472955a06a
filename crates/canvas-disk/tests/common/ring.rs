//! What a guest's driver may put into a queue: with any memory contents, the disk serves or returns
//! it, and stays intact.

use canvas_disk::pool::POOL_BYTES_MIN;
use canvas_disk::virtio::request::{Status, Work, serve};
use canvas_disk::{DiskMemory, PageStore, PoolStore};
use canvas_types::Codec;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const PAGES: u64 = 64;
const MEMORY: usize = 128 << 10;
/// Addresses of a queue of 16 in the guest: descriptors, available ring, used ring.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x200;
/// Requests whose answers make further ones are stopped after this many.
const SERVED_MAX: usize = 1_000;

fn guest(image: &[u8]) -> GuestMemoryMmap {
    let guest = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let image = &image[..image.len().min(MEMORY)];
    guest.write_slice(image, GuestAddress(0)).unwrap();
    guest
}

/// Serves everything in the queue; returns the number of requests.
fn serve_all(guest: &GuestMemoryMmap, store: &impl PageStore) -> usize {
    let mut queue = Queue::new(16).unwrap();
    queue.set_desc_table_address(Some(TABLE as u32), Some(0));
    queue.set_avail_ring_address(Some(AVAILABLE as u32), Some(0));
    queue.set_used_ring_address(Some(USED as u32), Some(0));
    queue.set_ready(true);
    let mut work = Work::new();
    let mut served = 0;
    while served < SERVED_MAX
        && let Some(chain) = queue.pop_descriptor_chain(guest)
    {
        let head = chain.head_index();
        let written = serve(chain, guest, store, &mut work);
        served += 1;
        if queue.add_used(guest, head, written).is_err() {
            break;
        }
    }
    served
}

/// The memory of a guest with one request: page 1 is written (1) or read (0), with the data after
/// the head.
fn page_1(kind: u32, data: &[u8; 4096]) -> Vec<u8> {
    const HEAD: u64 = 0x400;
    const DATA: u64 = 0x1000;
    const LAST: u64 = 0x500;
    let mut image = vec![0; 0x2000];
    let mut put =
        |at: u64, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    let to_guest = if kind == 0 { 2 } else { 0 };
    let chain = [
        (HEAD, 16, 1, 1),
        (DATA, 4096, 1 | to_guest, 2),
        (LAST, 1u32, 2u16, 0u16),
    ];
    for (i, (addr, len, flags, next)) in (0..).zip(chain) {
        put(TABLE + 16 * i, &addr.to_le_bytes());
        put(TABLE + 16 * i + 8, &len.to_le_bytes());
        put(TABLE + 16 * i + 12, &flags.to_le_bytes());
        put(TABLE + 16 * i + 14, &next.to_le_bytes());
    }
    put(AVAILABLE + 2, &1u16.to_le_bytes());
    put(HEAD, &kind.to_le_bytes());
    put(HEAD + 8, &8u64.to_le_bytes());
    put(LAST, &[9]);
    put(DATA, data);
    image
}

/// Any bytes as the start of a guest's memory, with a queue in it.
pub fn ring_any(image: &[u8]) {
    let memory = DiskMemory::new(PAGES, POOL_BYTES_MIN).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    serve_all(&guest(image), &store);
    // The next guest is served normally.
    for (kind, data) in [(1, [9; 4096]), (0, [0; 4096])] {
        let guest = guest(&page_1(kind, &data));
        assert_eq!(serve_all(&guest, &store), 1);
        let (mut page, mut last) = ([0; 4096], [0]);
        guest.read_slice(&mut page, GuestAddress(0x1000)).unwrap();
        guest.read_slice(&mut last, GuestAddress(0x500)).unwrap();
        assert_eq!((page, last), ([9; 4096], [Status::Ok as u8]));
    }
}
