//! Transports to a donor: TCP, or TCP with RDMA in addition.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::time::Duration;

use canvas_wire::frame::{Reply, Request, Welcome};

use crate::rdma::RdmaLink;
use crate::{Completions, Link, LinkConfig, LinkError, SubmitError};

/// Prefix of an address whose donor is reached by RDMA.
pub const RDMA_PREFIX: &str = "rdma://";

/// Where a donor listens, and how its memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Address where the donor listens for sessions, always over TCP.
    pub addr: SocketAddr,
    /// Whether pages go over RDMA.
    pub rdma: bool,
}

impl Address {
    /// Splits a name as users write it: the name without the prefix, and whether it had the prefix.
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

/// A link to one donor over any transport. [`Link`] documents the methods and the caller's duties.
pub trait Transport: Send {
    /// The donor's answer to the introduction; see [`Link::welcome`].
    fn welcome(&self) -> &Welcome;
    /// Queues a request; see [`Link::submit`]. Tags below 2^63 are the caller's.
    fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError>;
    /// Answers a call of the donor; see [`Link::reply`].
    fn reply(&mut self, call: u64, reply: &Reply<'_>) -> Result<(), SubmitError>;
    /// Sends pending bytes; true when all are sent. See [`Link::flush`].
    fn flush(&mut self) -> Result<bool, LinkError>;
    /// Whether bytes wait to be sent; see [`Link::has_unsent`].
    fn has_unsent(&self) -> bool;
    /// Number of requests without an answer; see [`Link::outstanding`].
    fn outstanding(&self) -> usize;
    /// Takes completions, waiting up to `timeout` for them; see [`Link::poll`].
    fn poll(
        &mut self,
        completions: &mut Completions,
        timeout: Duration,
    ) -> Result<usize, LinkError>;
    /// Descriptor to wait on; after [`Transport::arm`] it becomes readable when there is something
    /// to poll.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    /// Must be called before waiting on the descriptor. Returns true if there is something to poll
    /// already.
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
        // Arriving bytes make the socket readable at any time.
        false
    }
}

/// Connects to a donor at its address; blocks as [`Link::connect`] does.
///
/// # Errors
///
/// Those of [`Link::connect`], and [`LinkError::Rdma`] if this host's device fails. A donor without
/// RDMA refuses ([`LinkError::Refused`]): there is no silent fallback to TCP.
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
