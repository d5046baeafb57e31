//! Who may connect to a socket that a port creates.

/// The owner and mode of a socket. They can change while the port is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketRights {
    /// `user`, `user:group` or `:group`, by name or number; `None`: netvmd's.
    pub owner: Option<String>,
    /// Permission bits; `None`: what netvmd's umask leaves, usually 0755, so that only the owner can connect.
    pub mode: Option<u32>,
    /// The numbers of `owner` on this machine, once they are looked up.
    pub ids: SocketIds,
}

/// Numbers of a user and a group; `None`: netvmd's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketIds {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

impl SocketRights {
    /// User and group of `owner`.
    #[must_use]
    pub fn names(&self) -> (Option<&str>, Option<&str>) {
        let Some(owner) = &self.owner else { return (None, None) };
        let (user, group) = owner.split_once(':').unwrap_or((owner, ""));
        (Some(user).filter(|user| !user.is_empty()), Some(group).filter(|group| !group.is_empty()))
    }
}
