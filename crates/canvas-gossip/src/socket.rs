//! chitchat's transport: UDP with every datagram sealed.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};

use crate::seal::{Opener, Sealer};
use canvas_wire::key::ClusterKey;

/// More than the largest datagram.
const DATAGRAM_BYTES: usize = 1 << 16;
/// Pause after an error of the socket.
const PAUSE: Duration = Duration::from_millis(100);

/// A transport for chitchat over a socket that is bound already.
pub struct SealedUdp {
    /// The socket, bound to the address that others know.
    pub socket: UdpSocket,
    /// The cluster key.
    pub key: ClusterKey,
    /// Counts refused datagrams.
    pub refused: Arc<AtomicU64>,
}

#[async_trait]
impl Transport for SealedUdp {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.socket.try_clone()?;
        socket.set_nonblocking(true)?;
        Ok(Box::new(SealedSocket {
            socket: tokio::net::UdpSocket::from_std(socket)?,
            sealer: Sealer::new(&self.key)?,
            opener: Opener::new(&self.key),
            buffer: vec![0; DATAGRAM_BYTES].into_boxed_slice(),
            refused: self.refused.clone(),
        }))
    }
}

struct SealedSocket {
    socket: tokio::net::UdpSocket,
    sealer: Sealer,
    opener: Opener,
    buffer: Box<[u8]>,
    refused: Arc<AtomicU64>,
}

#[async_trait]
impl Socket for SealedSocket {
    /// A message that cannot be sent is lost, as any datagram may be; the next round repeats it.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        for datagram in self.sealer.seal(&message.serialize_to_vec()) {
            let _ = self.socket.send_to(&datagram, to).await;
        }
        Ok(())
    }

    /// The next message from a holder of the key. Other senders get no answer.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Ok((len, from)) = self.socket.recv_from(&mut self.buffer).await else {
                // A peer's port is closed, or memory is short for a moment.
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            match self.opener.open(&mut self.buffer[..len]) {
                Ok(Some(message)) => {
                    if let Ok(message) = ChitchatMessage::deserialize(&mut &message[..]) {
                        return Ok((from, message));
                    }
                    self.refused.fetch_add(1, Relaxed);
                }
                Ok(None) => {}
                Err(_) => {
                    self.refused.fetch_add(1, Relaxed);
                }
            }
        }
    }
}
