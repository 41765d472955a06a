//! Hosts in a network of the bench: namespaces at one switch, each behind a link with a rate.
//!
//! All namespaces are without names, so they disappear with the processes that keep them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::error::NetError;
use super::net::{Keeper, bucket};
use super::undo::Undo;
use crate::rate::Rate;

/// Base of the hosts' addresses, to which their number is added. This host has, and needs, no route to them.
const FIRST: u32 = u32::from_be_bytes([10, 77, 0, 1]);
/// Device of a host towards the switch.
const DEVICE: &str = "eth0";

/// A switch.
pub struct Switch {
    keeper: Keeper,
    rate: Rate,
}

/// A host at a switch.
pub struct Port {
    keeper: Keeper,
    /// Name of its link's end at the switch.
    name: String,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Switch {
    /// Creates a switch whose links have this rate in each direction.
    pub fn start(rate: Rate, undo: &Arc<Undo>) -> Result<Switch, NetError> {
        let keeper = Keeper::start(undo)?;
        keeper.run(&["ip", "link", "add", "bridge", "type", "bridge"])?;
        keeper.run(&["ip", "link", "set", "bridge", "up"])?;
        Ok(Switch { keeper, rate })
    }

    /// Connects a new host with this number.
    pub fn join(&self, number: u32, undo: &Arc<Undo>) -> Result<Port, NetError> {
        let port = Port {
            keeper: Keeper::start(undo)?,
            name: format!("port{number}"),
            address: Ipv4Addr::from(FIRST + number),
        };
        let pid = port.keeper.pid().to_string();
        self.keeper.run(&[
            "ip", "link", "add", &port.name, "type", "veth", "peer", "name", DEVICE, "netns", &pid,
        ])?;
        let address = format!("{}/24", port.address);
        let [rate, burst, limit] = bucket(self.rate);
        for (keeper, device) in [(&self.keeper, port.name.as_str()), (&port.keeper, DEVICE)] {
            keeper.run(&[
                "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", &rate, "burst", &burst,
                "limit", &limit,
            ])?;
        }
        port.keeper
            .run(&["ip", "addr", "add", &address, "dev", DEVICE])?;
        port.keeper.run(&["ip", "link", "set", "lo", "up"])?;
        port.keeper.run(&["ip", "link", "set", DEVICE, "up"])?;
        self.keeper
            .run(&["ip", "link", "set", &port.name, "master", "bridge", "up"])?;
        Ok(port)
    }

    /// Disconnects a host, or connects it again.
    pub fn connect(&self, port: &Port, is_connected: bool) -> Result<(), NetError> {
        let state = if is_connected { "up" } else { "down" };
        self.keeper.run(&["ip", "link", "set", &port.name, state])?;
        Ok(())
    }
}

impl Port {
    /// Command prefix that runs a command on the host.
    pub fn prefix(&self) -> Vec<String> {
        self.keeper.prefix()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{one_journal, request};
    use crate::host::net::missing;
    use crate::link::Link;
    use std::io::ErrorKind;
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    /// Whether the second host can ping the first, which needs no listener.
    fn is_reached(ports: &[Port]) -> bool {
        let there = SocketAddr::from((ports[0].address, 9));
        let patience = Duration::from_secs(2);
        let tried = ports[1]
            .keeper
            .inside(move || TcpStream::connect_timeout(&there, patience));
        tried.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    }

    #[test]
    fn hosts_reach_each_other_while_they_are_connected() {
        if !canvas_testing::has_root("hosts behind a switch") {
            return;
        }
        let rate = Rate::mbit(1000);
        let link = Link {
            rate: Some(rate),
            delay: None,
        };
        if let Some(reason) = missing(link) {
            canvas_testing::skip(&reason.to_string());
            return;
        }
        let _one = one_journal();
        let undo = Undo::begin(&crate::host::reverse::Host, &request(&[]).guardian).unwrap();
        let switch = Switch::start(rate, &undo).unwrap();
        let ports: Vec<Port> = (0..2).map(|n| switch.join(n, &undo).unwrap()).collect();
        assert!(is_reached(&ports));
        switch.connect(&ports[0], false).unwrap();
        assert!(!is_reached(&ports));
        switch.connect(&ports[0], true).unwrap();
        assert!(is_reached(&ports));
        drop((ports, switch));
        assert_eq!(undo.finish(), [""; 0]);
    }
}
