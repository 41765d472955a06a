//! Detects the HotSpot JVM of this process, if it has one, and how its objects refer to each other.
//!
//! libjvm exports tables that describe its own structures (`gHotSpotVMStructs`, for the serviceability agent). A thread
//! of canvas reads them, some time after a fault has asked. No agent is loaded, and nothing is written to stderr.

use canvas_sys::proc::{self, File};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::runtime::lines::Lines;

/// Whether a JVM was asked for, was found to be absent or present, and whether its tables have been read.
const UNASKED: u32 = 0;
const ASKED: u32 = 1;
const NONE: u32 = 2;
const HERE: u32 = 3;
const READ: u32 = 4;
/// Time between two look-ups, and their maximum number: a launcher loads the JVM, and the JVM creates its heap, only
/// after a while.
const PERIOD_NS: u64 = 1_000_000_000;
const LOOKS_MAX: u32 = 30;

state! {
    /// What is known of the JVM.
    static JVM: Jvm {
        stage: AtomicU32 = AtomicU32::new(UNASKED),
        looks: AtomicU32 = AtomicU32::new(0),
        /// When to look next.
        next_ns: AtomicU64 = AtomicU64::new(0),
        /// As in [`Narrow`].
        base: AtomicUsize = AtomicUsize::new(0),
        /// As in [`Narrow`], plus 1; 0 if unknown.
        shift: AtomicU32 = AtomicU32::new(0),
        /// Its start and its end.
        heap: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2],
    }
}

/// How compressed references are expanded: address = base + value << shift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Narrow {
    /// Added to the shifted value.
    pub base: usize,
    /// How far the value is shifted.
    pub shift: u32,
}

/// Whether there is a JVM, as far as is known. The first call starts the search.
pub fn is_here() -> bool {
    let _ = JVM
        .stage
        .compare_exchange(UNASKED, ASKED, Ordering::Relaxed, Ordering::Relaxed);
    matches!(JVM.stage.load(Ordering::Relaxed), HERE | READ)
}

/// Whether the address lies in the heap of a JVM, as far as is known.
pub fn is_in_heap(address: usize) -> bool {
    let [start, end] = JVM.heap.each_ref().map(|x| x.load(Ordering::Relaxed));
    (start..end).contains(&address)
}

/// How references are compressed in the JVM's heap, if `address` lies there and that is known.
pub fn narrow(address: usize) -> Option<Narrow> {
    let shift = JVM.shift.load(Ordering::Acquire).checked_sub(1)?;
    is_in_heap(address).then(|| Narrow {
        base: JVM.base.load(Ordering::Relaxed),
        shift,
    })
}

/// Searches for the JVM if it was asked for and it is time. Called by the reclaim thread.
pub fn look(now_ns: u64) {
    let stage = JVM.stage.load(Ordering::Relaxed);
    if !matches!(stage, ASKED | HERE) || now_ns < JVM.next_ns.load(Ordering::Relaxed) {
        return;
    }
    JVM.next_ns.store(now_ns + PERIOD_NS, Ordering::Relaxed);
    let is_last = JVM.looks.fetch_add(1, Ordering::Relaxed) + 1 >= LOOKS_MAX;
    match libjvm() {
        None if is_last => JVM.stage.store(NONE, Ordering::Relaxed),
        None => {}
        Some(base) => {
            JVM.stage.store(HERE, Ordering::Relaxed);
            if read_tables(base).is_some() || is_last {
                JVM.stage.store(READ, Ordering::Relaxed);
            }
        }
    }
}

/// Load address of libjvm.so.
fn libjvm() -> Option<usize> {
    let mut lines = Lines::open(proc::pid(), b"maps")?;
    let mut base = None;
    lines.each_while(|line| {
        if !line.ends_with(b"/libjvm.so") {
            return true;
        }
        let start = line.split(|b| *b == b'-').next().unwrap_or_default();
        base = core::str::from_utf8(start)
            .ok()
            .and_then(|hex| usize::from_str_radix(hex, 16).ok());
        false
    });
    base
}

/// Memory of this process, read through the kernel: a wrong address is an error, not a fault.
struct Memory(File);

impl Memory {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.0.read_at(at, &mut bytes).ok()? == N).then_some(bytes)
    }
    fn u64(&self, at: usize) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }
    fn u32(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }
    fn usize(&self, at: usize) -> Option<usize> {
        self.u64(at).map(|n| n as usize)
    }
    /// Whether the C string at `at` equals `text`.
    fn is(&self, at: usize, text: &CStr) -> bool {
        let want = text.to_bytes_with_nul();
        let mut bytes = [0; 64];
        let bytes = &mut bytes[..want.len().min(64)];
        self.0.read_at(at, bytes).ok() == Some(want.len()) && bytes == want
    }
}

/// The dynamic symbols of a library in memory, by its GNU hash table.
struct Symbols<'m> {
    memory: &'m Memory,
    base: usize,
    hash: usize,
    table: usize,
    strings: usize,
}

impl<'m> Symbols<'m> {
    fn of(memory: &'m Memory, base: usize) -> Option<Symbols<'m>> {
        const PT_DYNAMIC: u32 = 2;
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        let headers = base + memory.usize(base + 32)?;
        let count = usize::from(u16::from_le_bytes(memory.bytes(base + 56)?));
        let dynamic = (0..count.min(64))
            .map(|i| headers + i * 56)
            .find(|h| memory.u32(*h) == Some(PT_DYNAMIC))?;
        let dynamic = base + memory.usize(dynamic + 16)?;
        // On most systems the loader has converted offsets to addresses.
        let address = |value: u64| match (value as usize) < base {
            true => base + value as usize,
            false => value as usize,
        };
        let (mut hash, mut table, mut strings) = (None, None, None);
        for i in 0..256 {
            let tag = memory.u64(dynamic + i * 16)?;
            let value = memory.u64(dynamic + i * 16 + 8)?;
            match tag {
                0 => break,
                DT_STRTAB => strings = Some(address(value)),
                DT_SYMTAB => table = Some(address(value)),
                DT_GNU_HASH => hash = Some(address(value)),
                _ => {}
            }
        }
        Some(Symbols {
            memory,
            base,
            hash: hash?,
            table: table?,
            strings: strings?,
        })
    }

    /// Address of the variable with this name.
    fn find(&self, name: &CStr) -> Option<usize> {
        let m = self.memory;
        let wanted = name.to_bytes().iter().fold(5381u32, |h, b| {
            h.wrapping_mul(33).wrapping_add(u32::from(*b))
        });
        let (buckets, first) = (m.u32(self.hash)?, m.u32(self.hash + 4)?);
        let bloom = m.u32(self.hash + 8)? as usize;
        let at_buckets = self.hash + 16 + bloom * 8;
        let chains = at_buckets + buckets as usize * 4;
        let begin = m.u32(at_buckets + wanted.checked_rem(buckets)? as usize * 4)?;
        for symbol in begin..begin.saturating_add(1024) {
            let hash = m.u32(chains + symbol.checked_sub(first)? as usize * 4)?;
            let entry = self.table + symbol as usize * 24;
            if hash | 1 == wanted | 1 && m.is(self.strings + m.u32(entry)? as usize, name) {
                return Some(self.base + m.usize(entry + 8)?);
            }
            if hash & 1 != 0 {
                return None;
            }
        }
        None
    }

    /// The 64-bit number in the variable with this name.
    fn value(&self, name: &CStr) -> Option<usize> {
        self.memory.usize(self.find(name)?)
    }
}

/// A row of the JVM's table: a field of a type.
struct Field {
    offset: usize,
    address: usize,
}

/// Finds fields in the table, each by its type and one of its names in different versions.
fn fields<const N: usize>(
    symbols: &Symbols<'_>,
    wanted: [(&CStr, [&CStr; 2]); N],
) -> Option<[Option<Field>; N]> {
    const ROWS_MAX: usize = 8192;
    let m = symbols.memory;
    let rows = symbols.value(c"gHotSpotVMStructs")?;
    let step = symbols.value(c"gHotSpotVMStructEntryArrayStride")?;
    let type_at = symbols.value(c"gHotSpotVMStructEntryTypeNameOffset")?;
    let field_at = symbols.value(c"gHotSpotVMStructEntryFieldNameOffset")?;
    let offset_at = symbols.value(c"gHotSpotVMStructEntryOffsetOffset")?;
    let address_at = symbols.value(c"gHotSpotVMStructEntryAddressOffset")?;
    let mut found = [const { None }; N];
    // Rows of one type are adjacent and share one name string, so little is read and reclaim is not delayed.
    let mut last = (0, [false; N]);
    for row in (0..ROWS_MAX).map(|i| rows + i * step) {
        let of_type = m.usize(row + type_at)?;
        if of_type == 0 {
            break;
        }
        if of_type != last.0 {
            last = (of_type, wanted.map(|(name, _)| m.is(of_type, name)));
        }
        if last.1 == [false; N] {
            continue;
        }
        let field = m.usize(row + field_at)?;
        let is_it = |i: &usize| last.1[*i] && wanted[*i].1.iter().any(|name| m.is(field, name));
        if let Some(i) = (0..N).find(is_it) {
            found[i] = Some(Field {
                offset: m.usize(row + offset_at)?,
                address: m.usize(row + address_at)?,
            });
        }
    }
    Some(found)
}

/// Reads how references are compressed and where the heap lies. `None` if that cannot be read (yet).
fn read_tables(base: usize) -> Option<()> {
    let memory = Memory(File::open(c"/proc/self/mem").ok()?);
    let symbols = Symbols::of(&memory, base)?;
    let [narrow_base, narrow_shift, heap, reserved] = fields(
        &symbols,
        [
            (c"CompressedOops", [c"_base", c"_narrow_oop._base"]),
            (c"CompressedOops", [c"_shift", c"_narrow_oop._shift"]),
            (c"Universe", [c"_collectedHeap", c"_collectedHeap"]),
            (c"CollectedHeap", [c"_reserved", c"_reserved"]),
        ],
    )?;
    let heap = memory.usize(heap?.address)?;
    if heap == 0 {
        return None;
    }
    // A MemRegion: its first address, and its size in words.
    let range = heap + reserved?.offset;
    let start = memory.usize(range)?;
    let bytes = memory.usize(range + 8)?.checked_mul(8)?;
    let narrow = Narrow {
        base: memory.usize(narrow_base?.address)?,
        shift: memory.u32(narrow_shift?.address)?,
    };
    let end = start.checked_add(bytes)?;
    JVM.heap[0].store(start, Ordering::Relaxed);
    JVM.heap[1].store(end, Ordering::Relaxed);
    JVM.base.store(narrow.base, Ordering::Relaxed);
    // Without a base and a shift, 32 bits cannot reach a heap beyond 4 GiB: its references are not compressed.
    let is_compressed = narrow.base != 0 || end >> 32 >> narrow.shift.min(8) == 0;
    if is_compressed {
        JVM.shift.store(narrow.shift + 1, Ordering::Release);
    }
    Some(())
}
