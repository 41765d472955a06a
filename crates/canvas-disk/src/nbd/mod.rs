//! The disk over NBD, on a UNIX socket: for guests and virtual machine monitors of any kind.
//!
//! Each client has a thread, which serves its requests in order. There is no flush: no stored data
//! outlive the process, so there is nothing to wait for.

mod chunks;
mod kernel;
pub mod proto;
pub mod session;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv};

use crate::socket::Socket;
use crate::{PageStore, Scratch, span};
use session::End;

/// Most clients at one time.
pub const CLIENTS_MAX: usize = 16;
/// Pause after a client could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Most time without progress in the handshake.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// Statistics of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientStats {
    /// Clients connected.
    pub clients: u64,
    /// Clients accepted.
    pub accepted: u64,
    /// Clients refused because there were too many.
    pub turned_away: u64,
    /// Sessions ended because the client broke the NBD protocol.
    pub nonsense: u64,
}

/// Serves a disk to NBD clients.
pub struct Server {
    socket: Socket,
    /// The connected clients.
    clients: Mutex<BTreeMap<u64, UnixStream>>,
    accepted: AtomicU64,
    turned_away: AtomicU64,
    nonsense: AtomicU64,
}

impl Server {
    /// A server without clients.
    pub fn new(socket: Socket) -> Server {
        Server {
            socket,
            clients: Mutex::default(),
            accepted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            nonsense: AtomicU64::new(0),
        }
    }

    /// Readable when a client waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.listener.as_fd()
    }

    /// Accepts waiting clients; each gets a thread of the scope.
    pub fn accept<'scope, S: PageStore>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        store: &'scope S,
    ) {
        loop {
            let stream = match self.socket.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The client has gone; or descriptors are short, and the client waits.
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            };
            let Some(number) = self.enter(&stream) else {
                continue;
            };
            let serve = move || {
                let end = self.serve(stream, store);
                // Before the log, which may block while nobody reads it.
                self.clients().remove(&number);
                self.ended(&end);
            };
            let name = format!("nbd-{number}");
            if Builder::new()
                .name(name)
                .spawn_scoped(scope, serve)
                .is_err()
            {
                self.clients().remove(&number);
                self.turned_away.fetch_add(1, Relaxed);
            }
        }
    }

    /// Ends all sessions, and so their threads.
    pub fn hang_up(&self) {
        for stream in self.clients().values() {
            // Fails if the client is already gone.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Statistics of clients.
    pub fn stats(&self) -> ClientStats {
        ClientStats {
            clients: self.clients().len() as u64,
            accepted: self.accepted.load(Relaxed),
            turned_away: self.turned_away.load(Relaxed),
            nonsense: self.nonsense.load(Relaxed),
        }
    }

    fn ended(&self, end: &End) {
        let why = match end {
            End::Done => return,
            End::Nonsense(why) => {
                self.nonsense.fetch_add(1, Relaxed);
                (*why).to_owned()
            }
            End::Failed(e) => format!("its connection failed ({e})"),
        };
        tracing::warn!("a client is not served: {why}");
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, UnixStream>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for the client, if there is room for it.
    fn enter(&self, stream: &UnixStream) -> Option<u64> {
        let mut clients = self.clients();
        let copy = stream.try_clone().ok();
        let Some(copy) = copy.filter(|_| clients.len() < CLIENTS_MAX) else {
            self.turned_away.fetch_add(1, Relaxed);
            return None;
        };
        let number = self.accepted.fetch_add(1, Relaxed);
        clients.insert(number, copy);
        Some(number)
    }

    /// Serves one client until it ends.
    fn serve(&self, mut stream: UnixStream, store: &impl PageStore) -> End {
        let bytes = span::disk_bytes(store);
        // The listener does not block, but its clients' threads do.
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(HANDSHAKE_WAIT)))
            .map_err(End::from)
            .and_then(|()| session::shake_hands(&mut stream, bytes))
            .and_then(|replies| {
                let untimed = stream.set_read_timeout(None);
                untimed.map(|()| replies).map_err(End::from)
            });
        let replies = match ready {
            Ok(replies) => replies,
            Err(end) => return end,
        };
        let mut scratch = Box::<Scratch>::default();
        // The program that made the connection passes it to the kernel before the first request.
        let is_asked = || {
            let first = recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK);
            first.is_ok_and(|n| n > 0)
        };
        if is_asked()
            && let Some(device) = kernel::device_of(&stream)
        {
            self.turned_away.fetch_add(1, Relaxed);
            tracing::warn!(
                "a client is not served: it is the kernel of this host (/dev/{device}), which could wait for itself \
                 when memory is short; leave --nbd away and start with --swap-host"
            );
            let nothing = kernel::Nothing {
                pages: store.pages(),
            };
            return session::transmit(&mut stream, &nothing, &mut scratch, replies);
        }
        session::transmit(&mut stream, store, &mut scratch, replies)
    }
}
