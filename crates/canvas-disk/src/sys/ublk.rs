//! A block device of this host, /dev/ublkbN, whose requests a process serves (ublk, Linux 6.4).
//!
//! [`Device`] is the device, [`Queue`] one of its queues, which one thread serves. The serving thread copies a
//! request's data between the kernel's pages and the queue's own buffers. All that the kernel needs for a request was
//! allocated when the queue was made.

use core::mem::{ManuallyDrop, offset_of};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use canvas_sys::Errno;
use canvas_types::PAGE_SIZE;
use nix::libc;

use super::mapping::Mapping;
use super::uring::Ring;

const CONTROL: &str = "/dev/ublk-control";
/// Concurrent requests of a queue.
pub const DEPTH: u16 = 64;
/// Maximum data of one request.
pub const DATA_BYTES: usize = 64 << 10;
/// Maximum bytes of one request to discard or zero.
const RANGE_BYTES: u32 = 64 << 20;
const SECTOR: u64 = 512;

/// Commands to the control device and to a device's own file.
mod command {
    const fn number(n: u32, bytes: u32) -> u32 {
        // _IOWR('u', n, bytes).
        3 << 30 | bytes << 16 | (b'u' as u32) << 8 | n
    }
    pub const ADD: u32 = number(0x04, 32);
    pub const DELETE: u32 = number(0x05, 32);
    pub const START: u32 = number(0x06, 32);
    pub const STOP: u32 = number(0x07, 32);
    pub const SET_PARAMETERS: u32 = number(0x08, 32);
    pub const FETCH: u32 = number(0x20, 16);
    pub const COMMIT_AND_FETCH: u32 = number(0x21, 16);
}

/// The commands above are numbered like ioctls.
const FLAG_ENCODED: u64 = 1 << 6;
/// Values for a command without a queue, and for a device that has no number yet.
const NO_QUEUE: u16 = u16::MAX;
const NO_DEVICE: u32 = u32::MAX;
/// Distance of the queues' descriptors in the device's file: the bytes of the deepest possible queue.
const DESCRIPTORS_STEP: usize = 4096 * DESCRIPTOR;
const DESCRIPTOR: usize = 24;
/// Kinds of parameters.
const BASIC_AND_DISCARD: u32 = 1 | 2;

/// ublksrv_ctrl_dev_info.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    queues: u16,
    depth: u16,
    state: u16,
    pad: u16,
    data_bytes: u32,
    device: u32,
    pid: i32,
    pad_too: u32,
    flags: u64,
    own_flags: u64,
    reserved: [u64; 3],
}

/// The used part of ublk_params.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Parameters {
    bytes: u32,
    kinds: u32,
    attributes: u32,
    logical_shift: u8,
    physical_shift: u8,
    optimal_shift: u8,
    least_shift: u8,
    sectors_max: u32,
    chunk_sectors: u32,
    sectors: u64,
    boundary_mask: u64,
    discard_alignment: u32,
    discard_granularity: u32,
    discard_sectors_max: u32,
    zero_sectors_max: u32,
    discard_segments_max: u16,
    reserved: u16,
}

impl Parameters {
    fn of_pages(pages: u64) -> Parameters {
        let shift = PAGE_SIZE.trailing_zeros() as u8;
        let range_sectors = RANGE_BYTES / SECTOR as u32;
        Parameters {
            // Up to `reserved`.
            bytes: 60,
            kinds: BASIC_AND_DISCARD,
            logical_shift: shift,
            physical_shift: shift,
            optimal_shift: shift,
            least_shift: shift,
            sectors_max: DATA_BYTES as u32 / SECTOR as u32,
            sectors: pages * (PAGE_SIZE as u64 / SECTOR),
            discard_granularity: PAGE_SIZE as u32,
            discard_sectors_max: range_sectors,
            zero_sectors_max: range_sectors,
            discard_segments_max: 1,
            ..Parameters::default()
        }
    }
}

const _: () = {
    assert!(size_of::<Info>() == 64 && offset_of!(Info, flags) == 24);
    assert!(offset_of!(Parameters, sectors) == 24 && offset_of!(Parameters, reserved) == 58);
    assert!(size_of::<Descriptor>() == DESCRIPTOR);
    assert!(command::ADD == 0xc020_7504 && command::COMMIT_AND_FETCH == 0xc010_7521);
};

/// Opens a device for reading and writing.
fn open(path: &str) -> Result<OwnedFd, Errno> {
    let file = File::options().read(true).write(true).open(path);
    file.map(OwnedFd::from).map_err(errno)
}

fn errno(e: std::io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

/// A block device. Dropping it waits until its queues are gone, and deletes it.
pub struct Device {
    /// The file that provides its queues; closed before the device is deleted.
    own: Option<OwnedFd>,
    ring: Ring,
    control: OwnedFd,
    number: u32,
}

impl Device {
    /// Creates a device with `pages` pages and `queues` queues. It becomes visible with [`Device::start`].
    pub fn add(pages: u64, queues: u16) -> Result<Device, Errno> {
        let control = open(CONTROL)?;
        let ring = Ring::new(2)?;
        let mut device = Device {
            own: None,
            ring,
            control,
            number: NO_DEVICE,
        };
        let mut info = Info {
            queues,
            depth: DEPTH,
            data_bytes: DATA_BYTES as u32,
            device: NO_DEVICE,
            flags: FLAG_ENCODED,
            ..Info::default()
        };
        // SAFETY: the kernel reads and writes at most a `ublksrv_ctrl_dev_info`, which is `info`.
        unsafe {
            device.command(
                command::ADD,
                &raw mut info as usize,
                size_of::<Info>() as u16,
                0,
            )?;
        }
        device.number = info.device;
        device.own = Some(open(&format!("/dev/ublkc{}", device.number))?);
        if info.queues != queues || info.depth != DEPTH || info.data_bytes as usize != DATA_BYTES {
            // The kernel's limits are far above ours.
            return Err(Errno(libc::EINVAL));
        }
        let mut wanted = Parameters::of_pages(pages);
        let (at, bytes) = (&raw mut wanted as usize, wanted.bytes as u16);
        // SAFETY: the kernel reads and writes at most `wanted.bytes` bytes, which lie in `wanted`.
        unsafe { device.command(command::SET_PARAMETERS, at, bytes, 0)? };
        Ok(device)
    }

    /// Its number N in /dev/ublkbN.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// One of its queues, numbered from 0.
    pub fn queue(&self, number: u16) -> Result<Queue, Errno> {
        let own = self.own.as_ref().ok_or(Errno(libc::EBADF))?;
        let own = own.try_clone().map_err(errno)?;
        let bytes = (usize::from(DEPTH) * DESCRIPTOR).next_multiple_of(PAGE_SIZE);
        let at = usize::from(number) * DESCRIPTORS_STEP;
        let descriptors = Mapping::shared(own.as_raw_fd(), at, bytes, libc::PROT_READ)?;
        let buffers = ManuallyDrop::new(Mapping::private(usize::from(DEPTH) * DATA_BYTES)?);
        buffers.take_all()?;
        Ok(Queue {
            ring: Ring::new(u32::from(DEPTH))?,
            own,
            descriptors,
            buffers,
            number,
            is_ours: [false; DEPTH as usize],
            left: 0,
        })
    }

    /// Shows the device to the host, served by the process `pid`. Waits until all queues have begun.
    pub fn start(&mut self, pid: u32) -> Result<(), Errno> {
        // SAFETY: this command has no buffer.
        unsafe { self.command(command::START, 0, 0, u64::from(pid)) }
    }

    /// Removes the device from the host: new requests fail, and queues end.
    pub fn stop(&mut self) -> Result<(), Errno> {
        // SAFETY: this command has no buffer.
        unsafe { self.command(command::STOP, 0, 0, 0) }
    }

    /// Issues a command, and waits for its end.
    ///
    /// # Safety
    ///
    /// What the command reads and writes, at most `bytes` bytes at `addr`, is the caller's to lend until this returns.
    unsafe fn command(
        &mut self,
        operation: u32,
        addr: usize,
        bytes: u16,
        datum: u64,
    ) -> Result<(), Errno> {
        let mut data = [0; 32];
        data[..4].copy_from_slice(&self.number.to_ne_bytes());
        data[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        data[6..8].copy_from_slice(&bytes.to_ne_bytes());
        data[8..16].copy_from_slice(&(addr as u64).to_ne_bytes());
        data[16..24].copy_from_slice(&datum.to_ne_bytes());
        // SAFETY: the buffer is the caller's promise until this returns; the command has ended by then (the loop
        // below).
        unsafe { self.ring.push(&self.control, operation, &data, 0) };
        self.ring.submit(1)?;
        loop {
            match self.ring.pop() {
                Some(ended) if ended.result < 0 => return Err(Errno(-ended.result)),
                Some(_) => return Ok(()),
                None => self.ring.submit(1)?,
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.number != NO_DEVICE {
            let _ = self.stop();
            self.own = None;
            // SAFETY: this command has no buffer.
            let _ = unsafe { self.command(command::DELETE, 0, 0, 0) };
        }
    }
}

/// Kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read the bytes of a range.
    Read,
    /// Write the bytes of a range.
    Write,
    /// Make everything written so far durable.
    Flush,
    /// A range is no longer needed.
    Discard,
    /// Make a range zeros.
    Zero,
    /// Unknown.
    Other,
}

/// A request for a range of the device. It belongs to this process until [`Queue::done`].
#[derive(Debug)]
pub struct Request {
    tag: u16,
    /// Its kind.
    pub kind: Kind,
    /// Where the range begins.
    pub offset: u64,
    /// Length of the range.
    pub bytes: u64,
}

/// ublksrv_io_desc.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    operation: u32,
    sectors: u32,
    start: u64,
    addr: u64,
}

impl Descriptor {
    fn request(self, tag: u16) -> Request {
        let kind = match self.operation & 0xff {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Flush,
            3 => Kind::Discard,
            5 => Kind::Zero,
            _ => Kind::Other,
        };
        Request {
            tag,
            kind,
            offset: self.start.saturating_mul(SECTOR),
            bytes: u64::from(self.sectors) * SECTOR,
        }
    }
}

/// A queue of requests, for the thread that begins it.
pub struct Queue {
    ring: Ring,
    own: OwnedFd,
    descriptors: Mapping,
    /// Leaked if the kernel may still write to it.
    buffers: ManuallyDrop<Mapping>,
    number: u16,
    /// Requests that belong to this process; the kernel does not access their buffers.
    is_ours: [bool; DEPTH as usize],
    /// Tags for which the kernel has a command, or that belong to this process.
    left: u16,
}

impl Queue {
    /// Starts to fetch requests, which only this thread may do from now on.
    pub fn begin(&mut self) -> Result<(), Errno> {
        (0..DEPTH).for_each(|tag| self.fetch(command::FETCH, tag, 0));
        self.left = DEPTH;
        self.ring.submit(0)?;
        // Only failed commands end before the device is started.
        match self.ring.pop() {
            Some(failed) => Err(Errno(-failed.result)),
            None => Ok(()),
        }
    }

    /// Waits for a request; `None` if the device was stopped.
    pub fn wait(&mut self) -> Result<Option<Request>, Errno> {
        loop {
            while let Some(ended) = self.ring.pop() {
                let tag = ended.user as u16;
                if ended.result == 0 && tag < DEPTH {
                    self.is_ours[usize::from(tag)] = true;
                    let at = usize::from(tag) * DESCRIPTOR;
                    // SAFETY: any bits are a `Descriptor`, which consists of numbers. The kernel has written the tag's
                    // before it ended the command, and does not write to it before the next one.
                    let descriptor: Descriptor = unsafe { self.descriptors.read(at) };
                    return Ok(Some(descriptor.request(tag)));
                }
                self.left -= 1;
            }
            if self.left == 0 {
                return Ok(None);
            }
            self.ring.submit(1)?;
        }
    }

    /// Buffer for the data of a request; `None` if the request is longer than possible.
    pub fn data(&mut self, request: &Request) -> Option<&mut [u8]> {
        assert!(self.is_ours[usize::from(request.tag)]);
        let bytes = usize::try_from(request.bytes)
            .ok()
            .filter(|n| *n <= DATA_BYTES)?;
        let place = self
            .buffers
            .place(usize::from(request.tag) * DATA_BYTES, bytes);
        let start = core::ptr::with_exposed_provenance_mut(place);
        // SAFETY: the range lies in the mapping (`place`), which lives as long as `self`; that is borrowed mutably, and
        // the kernel has no command for the tag (`is_ours`), so nobody else uses the range.
        Some(unsafe { core::slice::from_raw_parts_mut(start, bytes) })
    }

    /// Completes a request, perhaps with an error number, and fetches another one. The next wait submits both to the
    /// kernel.
    pub fn done(&mut self, request: Request, result: Result<(), i32>) {
        let has_data = matches!(request.kind, Kind::Read | Kind::Write);
        let answer = match result {
            Ok(()) if has_data => request.bytes as i32,
            Ok(()) => 0,
            Err(number) => -number,
        };
        self.is_ours[usize::from(request.tag)] = false;
        self.fetch(command::COMMIT_AND_FETCH, request.tag, answer);
    }

    fn fetch(&mut self, operation: u32, tag: u16, answer: i32) {
        let at = usize::from(tag) * DATA_BYTES;
        let buffer = self.buffers.place(at, DATA_BYTES) as u64;
        let mut data = [0; 16];
        data[..2].copy_from_slice(&self.number.to_ne_bytes());
        data[2..4].copy_from_slice(&tag.to_ne_bytes());
        data[4..8].copy_from_slice(&answer.to_ne_bytes());
        data[8..16].copy_from_slice(&buffer.to_ne_bytes());
        // SAFETY: the kernel reads and writes the tag's buffer until the command ends. It is mapped as long as any tag
        // has a command (`drop`), and used here only after its own has ended (`is_ours`). Each tag has one command, so
        // the ring has room.
        unsafe { self.ring.push(&self.own, operation, &data, u64::from(tag)) };
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.left == 0 {
            // SAFETY: they are dropped once, here; no tag has a command, so the kernel does not use them.
            unsafe { ManuallyDrop::drop(&mut self.buffers) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_its_descriptor_says() {
        let of = |operation, sectors, start| {
            let request = Descriptor {
                operation,
                sectors,
                start,
                addr: 0,
            }
            .request(3);
            (request.kind, request.offset, request.bytes)
        };
        assert_eq!(of(1 | 1 << 24, 8, 16), (Kind::Write, 8192, 4096));
        assert_eq!(of(0, 0, 0), (Kind::Read, 0, 0));
        let bytes = 512 * u64::from(u32::MAX);
        assert_eq!(of(3, u32::MAX, u64::MAX), (Kind::Discard, u64::MAX, bytes));
        assert_eq!(of(5, 1, 0).0, Kind::Zero);
        assert_eq!(of(4, 1, 0).0, Kind::Other);
    }
}
