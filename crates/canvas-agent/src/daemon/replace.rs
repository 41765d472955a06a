//! An agent takes another one's tenants over (`canvas agent --replace`).
//!
//! The old agent hands over its socket, its lock and every tenant's descriptors, including the connections of its
//! runners, and the new one confirms that all have arrived. Only then does the old agent stop serving, and only its
//! final message lets the new one start: if anything fails before that, the old agent keeps serving.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use canvas_shm::pass::{self, Received};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};

use super::error::ReplaceError;
use super::listener::TenantEntry;
use super::socket::{ListeningSocket, receive_within, send_within};
use canvas_control::hello::{Answer, Ask, BYTES_MAX, Given, VERSION};

/// How long the new agent waits for each message of the old one, which waits for its disks before the final one.
const WAIT: Duration = Duration::from_secs(10);
/// How long the old agent waits for the new one.
const GIVE_WAIT: Duration = Duration::from_secs(5);

/// What the old agent handed over.
pub struct Handover {
    /// Its socket.
    pub listening: ListeningSocket,
    /// Its tenants, with their descriptors.
    pub tenants: Vec<(Given, Vec<OwnedFd>)>,
}

/// Old agent: hands everything to the agent at `to`, which confirms it. That one starts to serve after the final
/// message ([`confirm_stopped`]).
pub fn hand_over(
    to: &OwnedFd,
    listening: &ListeningSocket,
    entries: &[TenantEntry],
) -> Result<(), ReplaceError> {
    let version = VERSION;
    let leaves = Answer::Leaves {
        version,
        tenants: entries.len(),
    };
    let fds = [listening.socket.as_fd(), listening.lock.as_fd()];
    send_within(to, &leaves.encode(), &fds, GIVE_WAIT)?;
    for TenantEntry { tenant, links, .. } in entries {
        let given = Answer::Tenant(Given {
            version,
            hello: tenant.hello.clone(),
            uid: tenant.uid,
            links: links.len(),
        });
        let mut fds = tenant.descriptors();
        fds.extend(links.iter().map(AsFd::as_fd));
        send_within(to, &given.encode(), &fds, GIVE_WAIT)?;
    }
    let mut buf = [0; BYTES_MAX];
    let got = receive_within(to, &mut buf, GIVE_WAIT)?;
    if !matches!(Ask::decode(&buf[..got.bytes]), Ok(Ask::Taken { .. })) {
        return Err(ReplaceError::HungUp);
    }
    Ok(())
}

/// Old agent: sends the final message, that it has stopped serving. After an error the new agent does not serve either.
pub fn confirm_stopped(to: &OwnedFd) -> Result<(), ReplaceError> {
    let goes = Answer::Goes { version: VERSION };
    Ok(send_within(to, &goes.encode(), &[], GIVE_WAIT)?)
}

/// New agent: requests the handover from the agent that listens at `path`. `None` when nobody listens; after an error
/// the old agent keeps serving.
pub fn take_over(path: &Path) -> Result<Option<Handover>, ReplaceError> {
    let old = match pass::connect(path) {
        Ok(old) => old,
        Err(Errno::ENOENT | Errno::ECONNREFUSED) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // The new agent trusts what it is given, so the giver must be root or its own user.
    let uid = getsockopt(&old, sockopt::PeerCredentials).map(|peer| peer.uid());
    if !uid.is_ok_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw()) {
        return Err(ReplaceError::OtherUser);
    }
    let version = VERSION;
    send_within(&old, &Ask::Leave { version }.encode(), &[], WAIT)?;
    let (answer, got) = answer(&old)?;
    let Answer::Leaves { tenants: n, .. } = answer else {
        return Err(ReplaceError::NoLeave);
    };
    let Ok([socket, lock]) = <[OwnedFd; 2]>::try_from(got.fds) else {
        return Err(ReplaceError::NoSocket);
    };
    let mut tenants = Vec::new();
    for _ in 0..n {
        match self::answer(&old)? {
            (Answer::Tenant(given), got) => tenants.push((given, got.fds)),
            _ => return Err(ReplaceError::NotAll),
        }
    }
    send_within(&old, &Ask::Taken { version }.encode(), &[], WAIT)?;
    match self::answer(&old)? {
        (Answer::Goes { .. }, _) => Ok(Some(Handover {
            listening: ListeningSocket { socket, lock },
            tenants,
        })),
        _ => Err(ReplaceError::Stays),
    }
}

fn answer(old: &OwnedFd) -> Result<(Answer, Received), ReplaceError> {
    let mut buf = [0; BYTES_MAX];
    let got = receive_within(old, &mut buf, WAIT).map_err(|e| match e {
        Errno::ETIMEDOUT => ReplaceError::Silent,
        e => e.into(),
    })?;
    if got.bytes == 0 {
        return Err(ReplaceError::HungUp);
    }
    if got.cut {
        return Err(ReplaceError::Descriptor);
    }
    match Answer::decode(&buf[..got.bytes])? {
        Answer::Refused { why, .. } => Err(ReplaceError::Refused(why)),
        answer => Ok((answer, got)),
    }
}
