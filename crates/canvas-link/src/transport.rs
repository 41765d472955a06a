//! What carries requests to a donor: TCP, or TCP with RDMA beside it.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::time::Duration;

use canvas_wire::frame::{Reply, Request, Welcome};

use crate::rdma::RdmaLink;
use crate::{Completions, Link, LinkConfig, LinkError, SubmitError};

/// What an address begins with whose donor is reached by RDMA.
pub const RDMA_PREFIX: &str = "rdma://";

/// Where a donor listens, and how its memory is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Where it listens for sessions: over TCP, always.
    pub addr: SocketAddr,
    /// Pages go over RDMA.
    pub rdma: bool,
}

impl Address {
    /// A name as people write it, without the prefix; and whether it had one.
    pub fn split(name: &str) -> (&str, bool) {
        match name.strip_prefix(RDMA_PREFIX) {
            Some(rest) => (rest, true),
            None => (name, false),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Address {
        Address { addr, rdma: false }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.rdma { RDMA_PREFIX } else { "" };
        write!(f, "{prefix}{}", self.addr)
    }
}

impl FromStr for Address {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Address, Self::Err> {
        let (addr, rdma) = Address::split(text);
        addr.parse().map(|addr| Address { addr, rdma })
    }
}

/// A link to one donor, whatever carries it. What each method does, and what the caller must do, is
/// said at [`Link`].
pub trait Transport: Send {
    /// What the donor said when the link was made; as [`Link::welcome`].
    fn welcome(&self) -> &Welcome;
    /// [`Link::submit`]. Tags below 2^63 are the caller's.
    fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError>;
    /// Answers a call of the donor's; as [`Link::reply`].
    fn reply(&mut self, call: u64, reply: &Reply<'_>) -> Result<(), SubmitError>;
    /// Sends what waits, true when nothing is left; as [`Link::flush`].
    fn flush(&mut self) -> Result<bool, LinkError>;
    /// Whether bytes wait to be sent; as [`Link::has_unsent`].
    fn has_unsent(&self) -> bool;
    /// Requests without an answer; as [`Link::outstanding`].
    fn outstanding(&self) -> usize;
    /// Takes what has come, and waits for it up to `timeout`; as [`Link::poll`].
    fn poll(
        &mut self,
        completions: &mut Completions,
        timeout: Duration,
    ) -> Result<usize, LinkError>;
    /// [`Link::fd`]; after [`Transport::arm`] it becomes readable when there is something to poll.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    /// To be called before waiting on the descriptor. True: there is something to poll already.
    fn arm(&self) -> bool;
}

impl Transport for Link {
    fn welcome(&self) -> &Welcome {
        Link::welcome(self)
    }

    fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        Link::submit(self, tag, request)
    }

    fn reply(&mut self, call: u64, reply: &Reply<'_>) -> Result<(), SubmitError> {
        Link::reply(self, call, reply)
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        Link::flush(self)
    }

    fn has_unsent(&self) -> bool {
        Link::has_unsent(self)
    }

    fn outstanding(&self) -> usize {
        Link::outstanding(self)
    }

    fn poll(
        &mut self,
        completions: &mut Completions,
        timeout: Duration,
    ) -> Result<usize, LinkError> {
        Link::poll(self, completions, timeout)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Link::fd(self)
    }

    fn arm(&self) -> bool {
        // What comes makes the socket readable, whenever it comes.
        false
    }
}

/// Connects to a donor as its address says; blocks as [`Link::connect`] does.
///
/// # Errors
///
/// As [`Link::connect`], and [`LinkError::Rdma`] when this host's device does not do it. A donor
/// without RDMA says so itself ([`LinkError::Refused`]): nothing falls back to TCP unasked.
pub fn connect(address: &Address, config: LinkConfig) -> Result<Box<dyn Transport>, LinkError> {
    let link = Link::connect(address.addr, config)?;
    Ok(if address.rdma {
        Box::new(RdmaLink::over(link)?)
    } else {
        Box::new(link)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_are_written() {
        for (text, rdma) in [
            ("10.0.0.5:7070", false),
            ("rdma://10.0.0.5:7070", true),
            ("rdma://[fe80::1]:7070", true),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.rdma), (text, rdma));
        }
        for text in [
            "rdma://",
            "rdma:10.0.0.5:7070",
            "tcp://10.0.0.5:7070",
            "rdma://rdma://1.2.3.4:5",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
