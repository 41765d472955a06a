//! Flags of `canvas disk`.

use std::net::SocketAddr;
use std::path::PathBuf;

use canvas_disk::virtio::QUEUES_MAX;
use canvas_types::units::Size;
use clap::Args;

use super::{BeyondArgs, CodecArg, address};

/// Flags of `canvas disk`.
#[derive(Args, Clone, Debug)]
pub struct DiskArgs {
    /// Size of the disk, in pages of 4K.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
    /// Serve the disk as a virtio block device over vhost-user at this UNIX socket: pages are read and written in
    /// the guest's memory, which has to be shared (qemu: -object memory-backend-memfd,share=on).
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub vhost_user: Option<PathBuf>,
    /// Queues of that device, a thread each; best as many as the guest has processors.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: u16,
    /// Serve the disk over NBD at this UNIX socket.
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub nbd: Option<PathBuf>,
    /// Serve the disk as a block device of this host, /dev/ublkbN, on which its own kernel may swap: all memory that the
    /// disk may need is taken and locked at the start. It takes root and Linux 6.4, and goes without far memory.
    #[arg(long, conflicts_with_all = ["nbd", "vhost_user", "group", "queues"])]
    pub swap_host: bool,
    /// Let members of this group connect too [default: this user only].
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Bound on the compressed pool that holds the pages [default: the disk's size, at most half of this host's
    /// memory, or of the control group's limit where that is smaller].
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<Size>,
    #[command(flatten)]
    pub beyond: BeyondArgs,
    /// How often in a minute another server takes the disk over from one that was killed or crashed, with all
    /// that is stored. With 0 the disk dies with its server.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1000))]
    pub restarts: u32,
    /// How pages are stored.
    #[arg(long, value_enum, default_value_t = CodecArg::Lz4)]
    pub codec: CodecArg,
    /// Write the state to FILE once a second (its fields: docs/CLI.md).
    #[arg(long, value_name = "FILE.json")]
    pub state_json: Option<PathBuf>,
    /// Offer metrics for Prometheus at http://ADDR:PORT/metrics, to whoever can connect there.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub metrics: Option<SocketAddr>,
}

/// Flags of `canvas disk-server`, which `canvas disk` starts.
#[derive(Args, Debug)]
pub struct HeldArgs {
    #[command(flatten)]
    pub disk: DiskArgs,
    /// The process that holds the disk.
    #[arg(long)]
    pub holder: u32,
    /// Servers that have died.
    #[arg(long)]
    pub died: u32,
    /// It holds far memory, too.
    #[arg(long)]
    pub held_far: bool,
}

/// Shown behind the flags.
pub const DISK_NOTES: &str = "\
The disk is for swap and other data that need not last: nothing survives the end of the command. What is
stored lies in a memory file that the command holds; it is served by a process that the command starts. When
that one is killed or crashes, another one goes on with the same bytes at the same sockets, and clients that
connect again (qemu: -chardev socket,...,reconnect=1; over NBD: reconnect-delay=60) see a pause. Pages
that do not shrink take what they are; zeros and discarded pages take nothing. With --far the oldest pages
leave the pool; a read that finds no copy within --far-wait fails with EIO. When all is full, a write fails
with ENOSPC, what is stored stays as it is, and one line says so.

Flags win over CANVAS_* variables, and those over section [disk.NAME] of the configuration file, which
--tenant NAME names.

SIGTERM, SIGINT and SIGHUP end the disk: clients are cut off, and the socket is removed. A disk on which its
host swaps (--swap-host) ends once that is over: swapoff comes first.

Exit codes: 0 ended by a signal; 1 its servers died more often than --restarts allows, and what was stored is
lost; 2 it could not start.

Example:
  canvas disk --size 8G --pool 2G --vhost-user /run/canvas-disk.sock
  qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=ram,size=2G,share=on \\
    -machine memory-backend=ram -chardev socket,id=far,path=/run/canvas-disk.sock,reconnect=1 \\
    -device vhost-user-blk-pci,chardev=far ...
and in the guest:
  echo 0 > /sys/block/vda/queue/rotational; mkswap /dev/vda && swapon -d /dev/vda";
