//! A NUMA node and how much may lie there (`--numa N=SIZE`).

use core::fmt;
use core::str::FromStr;

use crate::layout::NODE_SLABS;
use crate::units::{Size, UnitError};

/// Minimum limit of a node.
pub const NODE_MIN: Size = Size::from_bytes(1 << 20);
/// Maximum limit of a node: canvas numbers this many slabs per node, 32 KiB each.
pub const NODE_MAX: Size = Size::from_bytes((NODE_SLABS as u64) << 15);

/// A node with its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeBound {
    /// The kernel's number of the node.
    pub node: u32,
    /// How much may lie there; 0: nothing any more.
    pub size: Size,
}

/// Why a text is not a node with its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeBoundError {
    /// It does not begin with a node's number and `=`.
    Form,
    /// The limit is not a size.
    Size(UnitError),
    /// The limit is less than [`NODE_MIN`], but not 0.
    TooLittle,
    /// The limit is more than [`NODE_MAX`].
    TooMuch,
}

impl FromStr for NodeBound {
    type Err = NodeBoundError;
    fn from_str(text: &str) -> Result<NodeBound, NodeBoundError> {
        let (node, size) = text.split_once('=').ok_or(NodeBoundError::Form)?;
        let digits = !node.is_empty() && node.bytes().all(|b| b.is_ascii_digit());
        let node = node
            .parse()
            .ok()
            .filter(|_| digits)
            .ok_or(NodeBoundError::Form)?;
        let size = size.parse::<Size>().map_err(NodeBoundError::Size)?;
        match size.bytes {
            0 => Ok(NodeBound { node, size }),
            _ if size < NODE_MIN => Err(NodeBoundError::TooLittle),
            _ if size > NODE_MAX => Err(NodeBoundError::TooMuch),
            _ => Ok(NodeBound { node, size }),
        }
    }
}

impl fmt::Display for NodeBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.node, self.size)
    }
}

impl fmt::Display for NodeBoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeBoundError::Form => {
                f.write_str("it is not a node with its limit; write N=SIZE, such as 1=16G")
            }
            NodeBoundError::Size(why) => write!(f, "its limit cannot be read: {why}"),
            NodeBoundError::TooLittle => {
                write!(f, "its limit is too small; write {NODE_MIN} or more")
            }
            NodeBoundError::TooMuch => {
                write!(f, "its limit is too large; write {NODE_MAX} or less")
            }
        }
    }
}

impl core::error::Error for NodeBoundError {}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn bounds_are_written_as_they_are_read() {
        for text in ["1=16G", "0=1M", "1023=256G", "7=0"] {
            assert_eq!(text.parse::<NodeBound>().unwrap().to_string(), text);
        }
        for (text, want) in [
            ("", "write N=SIZE"),
            ("16G", "write N=SIZE"),
            ("=16G", "write N=SIZE"),
            ("+1=16G", "write N=SIZE"),
            ("-1=16G", "write N=SIZE"),
            ("4294967296=1G", "write N=SIZE"),
            ("1=", "cannot be read"),
            ("1=a", "cannot be read"),
            ("1=1023K", "write 1M or more"),
            ("1=257G", "write 256G or less"),
        ] {
            let why = text.parse::<NodeBound>().unwrap_err().to_string();
            assert!(why.contains(want), "{text}: {why}");
        }
    }
}
