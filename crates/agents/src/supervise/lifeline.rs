//! The connections whose end means the end of this process: its guardians hold them too.
//!
//! A server that sees such a connection close takes the holder for dead and gives its keys to others
//! (L15). Should this process be killed, its guardians need a moment to end their trees. Each holds a
//! duplicate of the connection, so the kernel closes it only with the last of them, and a guardian
//! ends only when nothing of its tree is left.

use std::{
    collections::HashMap,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use leasehold_client::stream::Lifeline;
use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
        sendmsg, socketpair,
    },
    unistd::close,
};

/// The guardians of this process as the [`Lifeline`] of its streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guardians;

#[derive(Default)]
struct Held {
    /// Our ends of the sockets to the guardians.
    guardians: Vec<OwnedFd>,
    /// The newest connection of each line, for guardians that are yet to come.
    connections: HashMap<u64, OwnedFd>,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lifeline for Guardians {
    fn hold(&self, line: u64, connection: BorrowedFd<'_>) -> io::Result<()> {
        let connection = connection.try_clone_to_owned()?;
        let mut held = held();
        let held = held.get_or_insert_default();
        held.hand_over(line, Some(&connection))?;
        held.connections.insert(line, connection);
        Ok(())
    }

    fn let_go(&self, line: u64) {
        let mut held = held();
        let held = held.get_or_insert_default();
        held.connections.remove(&line);
        // A guardian that takes nothing any more keeps a connection that was closed with a goodbye.
        let _ = held.hand_over(line, None);
    }
}

impl Held {
    /// Hands a connection to every guardian, and forgets those that have ended.
    fn hand_over(&mut self, line: u64, connection: Option<&OwnedFd>) -> io::Result<()> {
        let mut failed = None;
        self.guardians.retain(
            |guardian| match hand(guardian.as_raw_fd(), line, connection) {
                Ok(()) => true,
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => false,
                Err(error) => {
                    failed = Some(error);
                    true
                }
            },
        );
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// What is in the socket counts as held: the kernel keeps it open for whoever has the other end.
fn hand(guardian: RawFd, line: u64, connection: Option<&OwnedFd>) -> nix::Result<()> {
    let line = line.to_ne_bytes();
    let descriptors: Vec<RawFd> = connection.map(AsRawFd::as_raw_fd).into_iter().collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() {
        &[][..]
    } else {
        &rights[..]
    };
    // A guardian that hangs must not hang us.
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(guardian, &[IoSlice::new(&line)], rights, flags, None).map(drop)
}

/// The guardian's end of a new socket, with every connection of this process in it. Our end is kept
/// for those that follow.
pub(super) fn for_guardian() -> nix::Result<OwnedFd> {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    let mut held = held();
    let held = held.get_or_insert_default();
    // Nobody's line: only to see who has ended, so that no socket outlives its guardian for long.
    let _ = held.hand_over(u64::MAX, None);
    for (line, connection) in &held.connections {
        hand(ours.as_raw_fd(), *line, Some(connection))?;
    }
    held.guardians.push(ours);
    Ok(theirs)
}

/// In the guardian: holds what the supervisor hands over, for as long as this process lives. What a
/// supervisor that vanished has left stays.
pub(super) fn keep(socket: RawFd) {
    let mut kept: HashMap<u64, RawFd> = HashMap::new();
    loop {
        let mut line = [0; 8];
        let mut rights = cmsg_space!([RawFd; 1]);
        let mut into = [IoSliceMut::new(&mut line)];
        // The program must not have it.
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<()>(socket, &mut into, Some(&mut rights), flags).and_then(|it| {
            let descriptor = it.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
                _ => None,
            });
            Ok((it.bytes, descriptor))
        });
        let earlier = match received {
            Ok((0, _)) => return,
            Ok((_, Some(descriptor))) => kept.insert(u64::from_ne_bytes(line), descriptor),
            Ok((_, None)) => kept.remove(&u64::from_ne_bytes(line)),
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        };
        if let Some(earlier) = earlier {
            let _ = close(earlier);
        }
    }
}
