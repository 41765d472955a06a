//! Flags of `canvas disk`.

use clap::Args;

use super::DiskSettings;

/// Flags of `canvas disk`.
#[derive(Args, Clone, Debug)]
pub struct DiskArgs {
    #[command(flatten)]
    pub settings: DiskSettings,
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

/// Shown after the flags.
pub const DISK_NOTES: &str = "\
The disk is for swap and other volatile data: nothing survives the end of the command. The
command holds the data in a memory file, and starts a process that serves it. When that process
is killed or crashes, another one takes over with the same data and sockets, and clients that
reconnect (qemu: -chardev socket,...,reconnect=1; over NBD: reconnect-delay=60) see a pause.
Incompressible pages take their full size, zeros and discarded pages nothing. With --far the
oldest pages leave the pool; a read that finds no copy within 30s (-o far-wait) fails with EIO.
When all is full, writes fail with ENOSPC, stored data stay unchanged, and one line reports it.

Flags win over CANVAS_FAR, CANVAS_TENANT and CANVAS_OPTIONS, and those over section [disk.NAME]
of the configuration file, which --tenant NAME names.

SIGTERM, SIGINT and SIGHUP end the disk: clients are disconnected, and the socket is removed. With a
disk of --swap-host, they take effect after swapoff.

Exit codes: 0 ended by a signal; 1 its servers died more often than -o restarts allows, and the
data are lost; 2 it could not start.

Example:
  canvas disk --size 8G --pool 2G --vhost-user /run/canvas-disk.sock
  qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=ram,size=2G,share=on \\
    -machine memory-backend=ram -chardev socket,id=far,path=/run/canvas-disk.sock,reconnect=1 \\
    -device vhost-user-blk-pci,chardev=far ...
and in the guest:
  echo 0 > /sys/block/vda/queue/rotational; mkswap /dev/vda && swapon -d /dev/vda";
